/** The part of Tabulator that the page uses, without types of its own. */
export class TabulatorFull {
  constructor(node: HTMLElement, options: object);
  [name: string]: any;
}
