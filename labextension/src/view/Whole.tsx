/** How the whole model runs in each way that was measured. */
import type { JSX } from "preact";
import type { RunDocument } from "./document";
import * as format from "./format";

export function Whole({ document }: { document: RunDocument }): JSX.Element | null {
  if (document.whole.length === 0) return null;
  return (
    <div>
      <h3>Whole model</h3>
      <table>
        <thead>
          <tr>
            <th scope="col">model</th>
            <th scope="col">rest</th>
            <th scope="col">against</th>
            <th scope="col" class="n">before</th>
            <th scope="col" class="n">after</th>
            <th scope="col" class="n">ratio</th>
          </tr>
        </thead>
        <tbody>
          {document.whole.map((row) => (
            <tr key={`${row.name} ${row.rest} ${row.against}`}>
              <th scope="row">{row.name}</th>
              <td>{row.rest}</td>
              <td>{row.against}</td>
              <td class="n">{format.time(row.against_us)}</td>
              <td class="n">{format.time(row.ours_us)}</td>
              <td class="n">
                {format.ratio(row.ratio)}{" "}
                <span class="kforge-note">{format.interval(row.low, row.high)}</span>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {document.recommendation && (
        <p class="kforge-note">
          Recommended rest: <b>{document.recommendation.rest}</b>, {document.recommendation.reason}
        </p>
      )}
    </div>
  );
}
