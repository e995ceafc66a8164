/** Figures as people read them. Every function takes null for "not measured". */

export const NONE = "–";

/** 2.314 → `2.31×`. */
export function ratio(value: number | null | undefined): string {
  if (value == null) return NONE;
  return `${value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)}×`;
}

/** The 95% interval in words. */
export function interval(low: number | null | undefined, high: number | null | undefined): string {
  if (low == null || high == null) return "";
  return `${ratio(low).slice(0, -1)} to ${ratio(high).slice(0, -1)}`;
}

/** Microseconds with a fitting unit. */
export function time(us: number | null | undefined): string {
  if (us == null) return NONE;
  if (us < 1) return `${(us * 1000).toFixed(0)} ns`;
  if (us < 1000) return `${us.toFixed(us < 100 ? 1 : 0)} µs`;
  if (us < 1_000_000) return `${(us / 1000).toFixed(us < 10_000 ? 2 : 1)} ms`;
  return `${(us / 1_000_000).toFixed(us < 10_000_000 ? 2 : 1)} s`;
}

/** A difference of times with its sign: `−4.7 ms`. */
export function change(us: number | null | undefined): string {
  if (us == null) return NONE;
  return us === 0 ? "0" : `${us < 0 ? "−" : "+"}${time(Math.abs(us))}`;
}

/** 0.314 → `31.4%`. */
export function percent(share: number | null | undefined): string {
  return share == null ? NONE : `${(share * 100).toFixed(1)}%`;
}

/** A figure that is not sure as `≈ 31.4%`; what is not known stays so. */
export function about(text: string, rough: boolean): string {
  return rough && text !== NONE ? `≈ ${text}` : text;
}

/** Seconds as `3:10`, or hours before it. */
export function clock(seconds: number | null | undefined): string {
  if (seconds == null) return NONE;
  const whole = Math.max(0, Math.round(seconds));
  const pad = (n: number): string => String(n).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor((whole % 3600) / 60);
  return hours > 0
    ? `${hours}:${pad(minutes)}:${pad(whole % 60)}`
    : `${minutes}:${pad(whole % 60)}`;
}

/** Money; small sums keep their digits. */
export function usd(value: number): string {
  return `$${value > 0 && value < 0.1 ? value.toFixed(4) : value.toFixed(2)}`;
}

/** An error figure such as 1.7e-3. */
export function error(value: number | null | undefined): string {
  if (value == null) return NONE;
  return value === 0 ? "0" : value.toExponential(1);
}

/** `1 kernel`, `2 kernels`, `12,000 kernels`. */
export function count(n: number, noun: string, plural = `${noun}s`): string {
  return `${thousands(n)} ${n === 1 ? noun : plural}`;
}

/** 12000 → `12,000`. */
export function thousands(n: number): string {
  return String(n).replace(/\B(?=(\d{3})+$)/g, ",");
}
