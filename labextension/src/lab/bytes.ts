/** 12_345_678 bytes as `12`, small files as `0.3`. */
export function megabytes(bytes: number): string {
  const value = bytes / 1_000_000;
  return value < 10 ? value.toFixed(1) : value.toFixed(0);
}
