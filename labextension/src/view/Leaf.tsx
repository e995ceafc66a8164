/** One item of the drawn tree: its mark, a word or figure above its line, and what it is aloud. */
import { Component, type JSX } from "preact";
import * as format from "./format";
import { hasHostCode, HOST_CODE, LETTER } from "./hostcode";
import { COLUMN, type Item } from "./layout";
import { Mark, radius } from "./Mark";
import { look } from "./verdicts";

interface Props {
  item: Item;
  best: boolean;
  selected: boolean;
  /** Whether the keyboard stands here. */
  cursor: boolean;
  newest: boolean;
  set: Set;
  onChoose: (item: Item) => void;
  onToggle: (item: Item) => void;
}

/** Place among its siblings, for screen readers. */
export interface Set {
  size: number;
  place: number;
}

/** Drawn again only when what it shows has changed; a tree has thousands of these. */
export class Leaf extends Component<Props> {
  override shouldComponentUpdate(next: Props): boolean {
    const { item: a, ...now } = this.props;
    const { item: b, ...then } = next;
    return (
      a.node !== b.node || a.x !== b.x || a.y !== b.y || a.closed !== b.closed ||
      a.hidden !== b.hidden || a.folded.length !== b.folded.length ||
      a.children.length === 0 !== (b.children.length === 0) ||
      now.best !== then.best || now.selected !== then.selected || now.cursor !== then.cursor ||
      now.newest !== then.newest || now.set.place !== then.set.place || now.set.size !== then.set.size
    );
  }

  override render({ item, best, selected, cursor, newest, set }: Props): JSX.Element {
    const size = radius(item);
    const open = item.children.length > 0 || item.closed ? !item.closed : undefined;
    return (
      <g
        role="treeitem"
        data-id={item.id}
        aria-level={item.level + 1}
        aria-setsize={set.size}
        aria-posinset={set.place}
        aria-selected={selected}
        {...(open === undefined ? {} : { "aria-expanded": open })}
        aria-label={spoken(item, best, newest)}
        tabindex={cursor ? 0 : -1}
        transform={`translate(${item.x} ${item.y})`}
        class={`kforge-leaf${selected ? " on" : ""}${newest ? " newest" : ""}`}
        onClick={this.choose}
        onDblClick={this.toggle}
      >
        <title>{spoken(item, best, newest)}</title>
        <rect class="kforge-reach" x={-14} y={-15} width={COLUMN - 4} height={29} rx={4} />
        <Mark item={item} best={best} />
        <text aria-hidden="true" x={size + (best ? 8 : 4)} y={-5}>
          {written(item)}
        </text>
      </g>
    );
  }

  // Handlers read the newest props, since an update may have been spared.
  private readonly choose = (): void => this.props.onChoose(this.props.item);
  private readonly toggle = (): void => this.props.onToggle(this.props.item);
}

/** What stands beside the mark. */
function written({ node, folded, closed, hidden }: Item): string {
  if (node === null) return folded.length > 0 ? `${folded.length} failed` : "eager 1×";
  const said = node.speedup === null ? look(node.verdict).word : format.ratio(node.speedup);
  const marked = hasHostCode(node) ? `${LETTER} ${said}` : said;
  return closed ? `${marked} +${hidden}` : marked;
}

/** The same with everything a mark says by shape, colour, size and place. */
export function spoken({ node, folded, closed, hidden }: Item, best: boolean, newest: boolean): string {
  if (node === null) {
    if (folded.length === 0) return "eager 1×, the original";
    const marked = folded.filter(hasHostCode).length;
    return `${folded.length} failed candidates${marked > 0 ? `, ${marked} with ${HOST_CODE}` : ""}`;
  }
  const speed = node.speedup === null ? "" : `, ${format.ratio(node.speedup)} over eager`;
  const below = closed ? `, ${format.count(hidden, "candidate")} hidden below` : "";
  const mark = hasHostCode(node) ? `, ${HOST_CODE}` : "";
  const first = best ? "best: " : newest ? "newest: " : "";
  return `${first}${node.id} ${node.title}${mark}, ${look(node.verdict).word}${speed}, ${format.count(node.visits, "visit")}${below}`;
}
