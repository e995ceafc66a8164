/** The side panel's timer. */
import { afterEach, beforeEach, expect, test, vi } from "vitest";

vi.mock("@lumino/widgets", () => ({
  Widget: class {
    node = document.createElement("div");
    isVisible = true;
  },
}));

import { RunsPanel } from "../src/lab/panelwidget";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

test("the timer keeps to two seconds, and skips a turn while a look goes on", () => {
  const listing = { busy: false, load: vi.fn(() => Promise.resolve()), listing: { rows: [], known: true, more: 0, folder: "", problem: "" } };
  const trans = { __: (text: string) => text, _n: (text: string) => text };
  const panel = new RunsPanel({ listing, trans, folder: () => "runs", every: () => 0.001, open: () => undefined } as unknown as ConstructorParameters<typeof RunsPanel>[0]);
  panel.schedule();
  vi.advanceTimersByTime(1999);
  expect(listing.load).not.toHaveBeenCalled();
  vi.advanceTimersByTime(1);
  expect(listing.load).toHaveBeenCalledExactlyOnceWith("runs");
  listing.busy = true;
  vi.advanceTimersByTime(10_000);
  expect(listing.load).toHaveBeenCalledTimes(1);
});
