// @ts-check
// The filter of a table, `lr<0.01 status:pruned -reason~diverged`: pure functions from a text to a test of rows.

/** What a filter knows of a column: its heading, a row's value, and the text that a row's cell shows.
 * @template Row
 * @typedef {object} Field
 * @property {string} head
 * @property {(row: Row) => unknown} value
 * @property {(row: Row) => string} shown
 */
/** @template Row @typedef {{test: (row: Row) => boolean, hint: string}} Filter */

/** The grammar, as the page explains it: an example and what it finds. */
export const GRAMMAR = [
  ["pruned 00007", "rows in which each word is part of some cell"],
  ['"best 2 of"', "quotes: the text with its spaces"],
  ["status:pruned", "rows whose column status is pruned; = means the same"],
  ["lr<0.01 epochs>=3", "numbers: < <= > >= and !="],
  ["reason~diverged", "rows whose reason contains the text; !~ if it does not"],
  ['"best epoch"<3', "a column with a space in its name; best_epoch<3 means the same"],
  ["-status:pruned -word", "a minus in front: not"],
  ['cutoff:"" cutoff!=""', "rows without a cutoff, rows with one"],
];

const FIELD = '(?:"([^"]*)"|([^\\s"<>=!~:]+))', OPERATOR = "\\s*(!=|!~|>=|<=|==|[:=~<>])\\s*";
const VALUE = '(?:"([^"]*)"|([^\\s"]+))';
const COMPARISON = new RegExp(`\\s*(-?)${FIELD}${OPERATOR}${VALUE}(?=\\s|$)`, "y");
const WORD = new RegExp(`\\s*(-?)${VALUE}(?=\\s|$)`, "y");
const MOST_NAMES = 20; // columns that an error text names

/**
 * Returns the test of a filter's text: a row passes if it passes every term. All letters match both cases.
 *
 * @template Row
 * @param {string} text
 * @param {Field<Row>[]} fields the table's columns
 * @returns {Filter<Row>}
 * @throws {Error} The text is no filter; its message says what to write instead.
 */
export function filterOf(text, fields) {
  /** @type {((row: Row) => boolean)[]} */
  const tests = [];
  let hint = "", before = ""; // the word before
  for (let at = 0; text.slice(at).trim();) {
    const compared = matchAt(COMPARISON, text, at), found = compared ?? matchAt(WORD, text, at);
    if (!found) throw new Error(`${text.slice(at).trim()}: a quote has no partner; add it, or remove this one`);
    at += found[0].length;
    const isNot = found[1] === "-";
    /** @type {(row: Row) => boolean} */
    let test;
    if (compared) {
      const [whole, , quotedName, name, operator, quoted, value] = compared;
      test = comparison(whole.trim(), column(quotedName ?? name, fields, whole.trim()), operator, quoted ?? value);
      before = "";
    } else {
      const bare = found[3], wanted = (found[2] ?? bare).toLowerCase();
      if (bare !== undefined) refuseHalf(bare);
      test = (row) => fields.some((field) => field.shown(row).toLowerCase().includes(wanted));
      const named = !isNot && before && fields.find(({ head }) => same(head) === before);
      if (named) hint = `Did you mean ${before}:${wanted}? Without the colon, the filter finds rows with both words in any cell`;
      before = bare !== undefined && !isNot ? same(bare) : "";
    }
    tests.push(isNot ? (row) => !test(row) : test);
  }
  return { test: (row) => tests.every((test) => test(row)), hint };
}

/** @param {RegExp} pattern @param {string} text @param {number} at */
function matchAt(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

/** Names that mean the same column: `best_epoch` and `Best epoch`.
 * @param {string} name */
const same = (name) => name.toLowerCase().replaceAll(" ", "_");

/** Refuses a comparison of which one side is missing.
 * @param {string} word */
function refuseHalf(word) {
  if (!/[<>=~:]/.test(word)) return;
  const lacks = /^[!<>=~:]+$/.test(word) ? "its column or its value" : /^[!<>=~:]/.test(word) ? "its column" : "its value";
  throw new Error(`${word}: ${lacks} is missing; write column:value, or "${word}" in quotes to search for this text`);
}

/**
 * @template Row
 * @param {string} name
 * @param {Field<Row>[]} fields
 * @param {string} term
 */
function column(name, fields, term) {
  const found = fields.find(({ head }) => head === name) ?? fields.find(({ head }) => same(head) === same(name));
  if (found) return found;
  const names = fields.slice(0, MOST_NAMES).map(({ head }) => same(head)).join(", ");
  const more = fields.length > MOST_NAMES ? ", ..." : "";
  throw new Error(`${term}: no column ${name}; columns: ${names}${more}. To search for the text, write it in quotes`);
}

/**
 * @template Row
 * @param {string} term
 * @param {Field<Row>} field
 * @param {string} operator
 * @param {string} wanted
 * @returns {(row: Row) => boolean}
 */
function comparison(term, { value, shown }, operator, wanted) {
  const text = wanted.toLowerCase(), limit = numeric(wanted);
  /** @param {Row} row */
  const isEqual = (row) => [shown(row), value(row)].flat().some((own) => String(own ?? "").toLowerCase() === text) || (limit !== null && numeric(value(row)) === limit);
  /** @param {Row} row */
  const contains = (row) => shown(row).toLowerCase().includes(text);
  if (operator === ":" || operator === "=" || operator === "==") return isEqual;
  if (operator === "!=") return (row) => !isEqual(row);
  if (operator === "~") return contains;
  if (operator === "!~") return (row) => !contains(row);
  if (limit === null) throw new Error(`${term}: ${wanted || '""'} is not a number; write a number without its unit`);
  /** @param {(own: number) => boolean} holds @returns {(row: Row) => boolean} */
  const ordered = (holds) => (row) => {
    const own = numeric(value(row));
    return own !== null && holds(own);
  };
  if (operator === "<") return ordered((own) => own < limit);
  if (operator === "<=") return ordered((own) => own <= limit);
  return operator === ">" ? ordered((own) => own > limit) : ordered((own) => own >= limit);
}

/**
 * Returns a value as a number; null if it is none. The service sends infinity as a text.
 *
 * @param {unknown} value
 */
export function numeric(value) {
  if (typeof value === "string") {
    const text = value.trim().toLowerCase();
    if (/^[+-]?inf(inity)?$/.test(text)) return text.startsWith("-") ? -Infinity : Infinity;
    value = text === "" ? NaN : Number(text);
  }
  return typeof value === "number" && !Number.isNaN(value) ? value : null;
}
