// The text of the view with the least contrast to what is painted behind it.
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const over = (top, below) => top.slice(0, 3)
    .map((v, i) => (v * top[3] + below[i] * (255 - top[3])) / 255);
  const behind = (element) => {
    const stack = [];
    for (let e = element; e; e = e.parentElement) stack.push(rgb(getComputedStyle(e).backgroundColor));
    return stack.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  let worst = { ratio: 99 };
  const walker = document.createTreeWalker(document.querySelector(".kforge"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || ["STYLE", "TITLE", "title"].includes(element.tagName)) continue;
    const style = getComputedStyle(element);
    const back = behind(element);
    const ink = over(rgb(element.closest("svg") ? style.fill : style.color), back);
    const [a, b] = [light(ink), light(back)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < worst.ratio) worst = { ratio, text: walker.currentNode.data, ink, back };
  }
  return worst;
}
