/** What is loaded when the first run is shown: the view, and the check of what it is given. */
export { readData, readText } from "../read/read";
export { mountRun } from "../view/mount";
