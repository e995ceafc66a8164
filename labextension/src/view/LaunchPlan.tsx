/** The launch plan as a picture, grid and block to scale, beside the plan in words. */
import type { JSX } from "preact";
import { Copy } from "./Copy";
import type { Details, Node, RunDocument, Target } from "./document";
import * as format from "./format";
import { record, type Shape, shapes, WARP } from "./launches";

/** Cells of a drawn grid; a larger one is drawn as that many parts of it. */
const CELLS = 32;
const BOX = 112;
const WAVES = 12;

interface Props {
  node: Node;
  details: Details;
  document: RunDocument;
  target: Target;
}

export function LaunchPlan({ node, details, document, target }: Props): JSX.Element {
  const drawn = shapes(details, document);
  const kernels = list(details.plan["kernels"]);
  if (kernels.length === 0) return <p class="kforge-note">There is no launch plan.</p>;
  const host = node.language !== "cuda";
  return (
    <>
      {host ? (
        node.language === "cpp" && <Threads details={details} document={document} target={target} />
      ) : (
        drawn.map((shape, i) => <Launch key={`${i} ${shape.name}`} shape={shape} />)
      )}
      {!host && drawn.length === 0 && (
        <p class="kforge-note">Its sizes are not worked out in this document; the plan is below.</p>
      )}
      <Arguments kernels={kernels} details={details} />
      <details>
        <summary>The plan as data</summary>
        <div class="kforge-coderow">
          <Copy what="plan" text={JSON.stringify(details.plan, null, 2)} />
        </div>
        <pre class="kforge-code" tabIndex={0}>
          {JSON.stringify(details.plan, null, 2)}
        </pre>
      </details>
    </>
  );
}

function Launch({ shape }: { shape: Shape }): JSX.Element {
  const { name, grid, block, blocks, threads, warps, idle } = shape;
  return (
    <div class="kforge-launch">
      <h4>{name}</h4>
      <div class="kforge-pictures">
        <Grid sizes={grid} blocks={blocks} />
        <Block shape={shape} />
        <ul>
          <li>
            grid <b>{sizes(grid)}</b> = {format.count(blocks, "block")}
          </li>
          <li>
            block <b>{sizes(block)}</b> = {format.count(threads, "thread")}, {format.count(warps, "warp")}
            {idle > 0 && <span class="kforge-warn"> ({idle} lanes of the last one idle)</span>}
          </li>
          <li>{format.count(blocks * threads, "thread")} in all</li>
          {shape.shared > 0 && <li>{format.thousands(shape.shared)} bytes of shared memory a block</li>}
          {shape.registers !== null && (
            <li>
              {format.count(shape.registers, "register")} a thread
              {shape.spills !== null && (shape.spills > 0 ? <b class="kforge-warn">, {shape.spills} bytes spilled</b> : ", no spills")}
            </li>
          )}
          {shape.waves !== null && shape.atOnce !== null && (
            <li>
              {format.thousands(shape.atOnce)} blocks at once: {shape.waves.toFixed(shape.waves < 10 ? 1 : 0)} waves
              <Waves waves={shape.waves} />
            </li>
          )}
        </ul>
      </div>
    </div>
  );
}

/** Blocks of the grid: x to the right, y down, z behind. */
function Grid({ sizes: [x, y, z], blocks }: { sizes: Shape["grid"]; blocks: number }): JSX.Element {
  const [columns, rows] = [Math.min(x, CELLS), Math.min(y, CELLS)];
  // To scale where it can be; a grid far longer than wide still shows that it has width.
  const ratio = Math.min(12, Math.max(1 / 12, x / y));
  const width = ratio >= 1 ? BOX : BOX * ratio;
  const height = ratio >= 1 ? BOX / ratio : BOX;
  const behind = z > 1 ? 6 : 0;
  const cut = x > CELLS || y > CELLS ? `, drawn as ${columns} by ${rows}` : "";
  const lines = cuts(columns, width).map((at) => `M${at} 0V${height}`).join("") +
    cuts(rows, height).map((at) => `M0 ${at}H${width}`).join("");
  return (
    <figure class="kforge-shape">
      <svg
        width={width + behind + 2}
        height={height + behind + 2}
        viewBox={`-1 ${-behind - 1} ${width + behind + 2} ${height + behind + 2}`}
        role="img"
        aria-label={`Grid of ${x} by ${y} by ${z}, ${format.count(blocks, "block")}${cut}`}
      >
        {behind > 0 && <rect class="behind" x={behind} y={-behind} width={width} height={height} />}
        <rect class="cell" width={width} height={height} />
        <path class="cuts" d={lines} />
      </svg>
      <figcaption>grid{z > 1 && `, ${z} deep`}</figcaption>
    </figure>
  );
}

function cuts(parts: number, length: number): number[] {
  return Array.from({ length: parts - 1 }, (_, i) => Math.round(((i + 1) * length * 10) / parts) / 10);
}

/** Threads of one block: a row is a warp; lanes without a thread are hollow. */
function Block({ shape: { threads, warps, idle } }: { shape: Shape }): JSX.Element {
  const width = 112;
  const lane = width / WARP;
  const rows = Math.max(1, Math.min(warps, 32));
  const full = idle > 0 ? rows - 1 : rows;
  return (
    <figure class="kforge-shape">
      <svg
        width={width + 2}
        height={rows * lane + 2}
        viewBox={`-1 -1 ${width + 2} ${rows * lane + 2}`}
        role="img"
        aria-label={`Block of ${format.count(threads, "thread")}, ${format.count(warps, "warp")}`}
      >
        <rect class="hollow" width={width} height={rows * lane} />
        {full > 0 && <rect class="cell" width={width} height={full * lane} />}
        {idle > 0 && <rect class="cell" y={full * lane} width={(WARP - idle) * lane} height={lane} />}
        <path class="cuts" d={cuts(rows, rows * lane).map((at) => `M0 ${at}H${width}`).join("")} />
      </svg>
      <figcaption>block, a row is a warp</figcaption>
    </figure>
  );
}

/** How often the device is filled; the last time only in part. */
function Waves({ waves }: { waves: number }): JSX.Element | null {
  if (waves > WAVES) return null;
  const whole = Math.floor(waves);
  const parts = [...Array.from({ length: whole }, () => 1), ...(waves > whole ? [waves - whole] : [])];
  return (
    <svg class="kforge-waves" width={parts.length * 18} height={16} aria-hidden="true">
      {parts.map((part, i) => (
        <g key={i} transform={`translate(${i * 18} 1)`}>
          <rect class="hollow" width={14} height={14} />
          <rect class="cell" y={14 * (1 - part)} width={14} height={14 * part} />
        </g>
      ))}
    </svg>
  );
}

/** A C++ entry has no grid: its threads share the output among them. */
function Threads({ details, document, target }: Omit<Props, "node">): JSX.Element | null {
  const threads = Number(document.device["threads"]);
  if (!Number.isInteger(threads) || threads < 1) return null;
  const elements = target.outputs.reduce((sum, out) => sum + out.shape.reduce((a, b) => a * b, 1), 0);
  const drawn = Math.min(threads, 64);
  const width = 440;
  const symbols = Object.entries(details.launch?.symbols ?? {});
  return (
    <figure class="kforge-plot">
      <figcaption>
        {format.count(threads, "thread")} share {format.count(elements, "output element")}: about{" "}
        {format.thousands(Math.ceil(elements / threads))} each
        {symbols.length > 0 && `; ${symbols.map(([name, value]) => `${name} = ${value === null ? "–" : format.thousands(value)}`).join(", ")}`}
      </figcaption>
      <svg class="kforge-shape" viewBox={`-1 -1 ${width + 2} 28`} role="img" aria-label={format.count(threads, "thread")}>
        {Array.from({ length: drawn }, (_, i) => (
          <g key={i} transform={`translate(${(i * width) / drawn} 0)`}>
            <rect class="cell" width={width / drawn - (drawn > 1 ? 2 : 0)} height={26} />
            {drawn <= 16 && (
              <text x={width / drawn / 2} y={17} text-anchor="middle">
                {i}
              </text>
            )}
          </g>
        ))}
      </svg>
    </figure>
  );
}

/** Each kernel with its arguments, as the plan gives them. */
function Arguments({ kernels, details }: { kernels: unknown[]; details: Details }): JSX.Element {
  const scratch = Object.entries(record(details.plan["scratch"]));
  const symbols = Object.entries(record(details.plan["symbols"]));
  const known = details.launch?.symbols ?? {};
  return (
    <>
      {kernels.map((kernel, i) => (
        <p key={i} class="kforge-call">
          <b>{String(record(kernel)["name"])}</b>({list(record(kernel)["args"]).map(String).join(", ")})
        </p>
      ))}
      {symbols.length > 0 && (
        <p class="kforge-call kforge-note">
          {symbols.map(([name, text]) => {
            const value = known[name];
            return `${name} = ${String(text)}${value == null ? "" : ` = ${format.thousands(value)}`}`;
          }).join(" · ")}
        </p>
      )}
      {scratch.length > 0 && (
        <p class="kforge-note">
          scratch: {scratch.map(([name, of]) => `${name} ${String(record(of)["dtype"])}[${list(record(of)["shape"]).map(String).join(", ")}]`).join(", ")}
          {details.launch && ` = ${format.count(details.launch.scratch_bytes, "byte")}`}
        </p>
      )}
    </>
  );
}

function sizes([x, y, z]: readonly [number, number, number]): string {
  const shown = z > 1 ? [x, y, z] : y > 1 ? [x, y] : [x];
  return shown.map(format.thousands).join(" × ");
}

function list(value: unknown): unknown[] {
  return Array.isArray(value) ? value : [];
}
