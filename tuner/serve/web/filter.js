// @ts-check
// The filter of a table, `status:pruned,failed and (lr<0.01 or not reason~diverged)`: pure functions from a text to a
// test of rows.

/** What a filter knows of a column: its heading, a row's value, and the text that a row's cell shows.
 * @template Row
 * @typedef {object} Field
 * @property {string} head
 * @property {(row: Row) => unknown} value
 * @property {(row: Row) => string} shown */
/** A test of rows, and what it finds in words.
 * @template Row @typedef {{test: (row: Row) => boolean, told: string}} Filter */

/** The grammar, as the page explains it: an example and what it finds. */
export const GRAMMAR = [
  ["pruned 00007", "rows in which each word is part of some cell"],
  ['"best 2 of"', "quotes: the text with its spaces"],
  ["status:pruned", "rows whose column status is pruned; = means the same, != the opposite"],
  ["width:64,96 status:pruned|failed", "one of several values"],
  ["lr<0.01 epochs>=3", "numbers: < <= > >="],
  ["reason~diverged", "rows whose reason contains the text; !~ if it does not"],
  ["reason~/rung [24]$/", "rows whose reason matches a regular expression"],
  ["lr<0.01 or width:64", "and (or a space), or, not, and brackets: not (a or b)"],
  ["-status:pruned -word", "a minus in front: not"],
  ['"best epoch"<3', "a column with a space in its name; best_epoch<3 means the same"],
  ['cutoff:"" cutoff!=""', "rows without a cutoff, rows with one"],
];

const TOKEN = /\s*(?:([()])|(-?"[^"]*"|[^\s"<>=!~:()]+)\s*(!=|!~|>=|<=|==|=>|=<|<>|[:=~<>])\s*((?:\/(?:\\.|[^/])*\/(?=[\s)]|$)|(?:"[^"]*"|[^\s"()])+|(?=\s*$)))|(-?"[^"]*"|[^\s()]+))/y;
const MOST_NAMES = 20; // columns that an error text names
const MOST_VALUES = 12; // values that complete a condition
const MOST_TEXT = 300; // characters of a cell that a regular expression reads
const MOST_REPEATS = 2; // repeats in a regular expression: its time grows with a power of their number
const MOST_CHOICES = 6; // `|` in a regular expression with groups: they multiply its time
const MOST_MS = 150; // that one regular expression may take for all rows
const MIRRORED = new Map([["=>", ">="], ["=<", "<="], ["<>", "!="]]);

/** Names that mean the same column: `best_epoch` and `Best epoch`.
 * @param {string} name */
const same = (name) => name.toLowerCase().replaceAll(" ", "_");
/** @param {string} text */
const unquoted = (text) => text.replace(/^"(.*)"$/, "$1");

/** Returns the test of a filter's text. Upper and lower case are the same.
 * @template Row @param {string} text @param {Field<Row>[]} fields the table's columns @returns {Filter<Row>}
 * @throws {Error} The text is no filter; its message says what to write instead. */
export function filterOf(text, fields) {
  if ((text.match(/"/g) ?? []).length % 2) throw new Error(`${text.trim()}: a quote has no partner; add it, or remove this one`);
  /** @type {RegExpExecArray[]} */
  const tokens = [];
  TOKEN.lastIndex = 0;
  for (let found; text.slice(TOKEN.lastIndex).trim() && (found = TOKEN.exec(text));) tokens.push(found);
  let place = 0;
  /** @param {...string} words */
  const isNext = (...words) => words.includes((tokens[place]?.[1] ?? tokens[place]?.[5] ?? "").toLowerCase());
  /** @param {Filter<Row>[]} parts @param {"some" | "every"} how @param {string} word @returns {Filter<Row>} */
  const joined = (parts, how, word) => (parts.length === 1 ? parts[0] : { test: (row) => parts[how](({ test }) => test(row)),
    told: parts.map(({ told }) => (how === "some" && told.includes(" and ") ? `(${told})` : told)).join(` ${word} `) });
  /** @returns {Filter<Row>} */
  const any = () => {
    const parts = [all()];
    while (isNext("or", "||")) (place++, parts.push(all()));
    return joined(parts, "some", "or");
  };
  /** @returns {Filter<Row>} */
  const all = () => {
    const parts = [one()];
    while (place < tokens.length && !isNext("or", "||", ")")) {
      if (isNext("and", "&&")) place++;
      parts.push(one());
    }
    return joined(parts, "every", "and");
  };
  /** @returns {Filter<Row>} */
  const one = () => {
    const token = tokens[place];
    if (!token || isNext("or", "and", ")")) throw new Error(`${text.trim()}: a condition is missing ${token ? `before ${token[0].trim()}` : "at the end"}; write one, such as lr<0.01`);
    if (isNext("not", "-")) return (place++, negated(one()));
    if (isNext("(")) {
      place++;
      const inner = any();
      if (!isNext(")")) throw new Error(`${text.trim()}: a bracket has no partner; add ), or remove (`);
      return (place++, { ...inner, told: `(${inner.told})` });
    }
    place++;
    const [whole, , name, operator, value, word] = token, isNot = (name ?? word).startsWith("-") && whole.trim() !== "-";
    const found = name ? condition(isNot ? name.slice(1) : name, operator, value, whole.trim(), fields) : anyCell(isNot ? word.slice(1) : word, fields);
    return isNot ? negated(found) : found;
  };
  const whole = any();
  if (place < tokens.length) throw new Error(`${text.trim()}: a bracket has no partner; add (, or remove )`);
  return { test: whole.test, told: `Rows where ${whole.told}.` };
}

/** @template Row @param {Filter<Row>} filter @returns {Filter<Row>} */
const negated = ({ test, told }) => ({ test: (row) => !test(row), told: `not ${told}` });

/** Finds a text in any cell.
 * @template Row @param {string} word @param {Field<Row>[]} fields @returns {Filter<Row>} */
function anyCell(word, fields) {
  if (!word.startsWith('"') && /[<>=~:]/.test(word)) {
    const lacks = /^[!<>=~:]+$/.test(word) ? "its column or its value" : "its column";
    throw new Error(`${word}: ${lacks} is missing; write column:value, or "${word}" in quotes to search for this text`);
  }
  const wanted = unquoted(word).toLowerCase(), field = fields.find(({ head }) => same(head) === wanted);
  const hint = field && !word.startsWith('"') ? `, not a condition: did you mean ${wanted}:VALUE or ${wanted}<NUMBER?` : "";
  return { test: (row) => fields.some(({ shown }) => shown(row).toLowerCase().includes(wanted)), told: `some cell contains "${wanted}"${hint}` };
}

/** @template Row
 * @param {string} name @param {string} operator @param {string} value @param {string} term @param {Field<Row>[]} fields
 * @returns {Filter<Row>} */
function condition(name, operator, value, term, fields) {
  if (MIRRORED.has(operator)) throw new Error(`${term}: write ${MIRRORED.get(operator)} instead of ${operator}`);
  if (!value) throw new Error(`${term}: its value is missing; write ${name}${operator}VALUE, or "${term}" in quotes to search for this text`);
  const field = column(unquoted(name), fields, term), { head } = field;
  if (operator.endsWith("~")) {
    const test = contains(field, value, term), what = value.startsWith("/") ? `matches ${value}` : `contains "${unquoted(value)}"`;
    return operator === "~" ? { test, told: `${head} ${what}` } : { test: (row) => !test(row), told: `not ${head} ${what}` };
  }
  if (/^[<>]/.test(operator)) return { test: compares(field, operator, value, term), told: `${head} ${operator} ${value}` };
  const wanted = value.match(/"[^"]*"|[^,|"]+/g)?.map(unquoted) ?? [], tests = wanted.map((each) => equals(field, each));
  /** @param {Row} row */
  const test = (row) => tests.some((each) => each(row));
  const told = `${head} is ${wanted.length > 1 ? "one of " : ""}${wanted.map((each) => each || "empty").join(", ")}`;
  return operator === "!=" ? { test: (row) => !test(row), told: `not ${told}` } : { test, told };
}

/** @template Row @param {string} name @param {Field<Row>[]} fields @param {string} term */
function column(name, fields, term) {
  const found = fields.find(({ head }) => head === name) ?? fields.find(({ head }) => same(head) === same(name));
  if (found) return found;
  const names = fields.map(({ head }) => same(head)), close = nearest(same(name), names);
  const more = names.length > MOST_NAMES ? ", ..." : "";
  throw new Error(`${term}: no column ${name}; ${close ? `did you mean ${close}? ` : ""}Columns: ${names.slice(0, MOST_NAMES).join(", ")}${more}. To search for the text, write it in quotes`);
}

/** Returns the name that contains the word, is contained in it or shares most of its pairs of letters.
 * @param {string} word @param {string[]} names */
function nearest(word, names) {
  /** @param {string} text */
  const pairs = (text) => new Set([...text].map((letter, i) => letter + (text[i + 1] ?? "")));
  const own = pairs(word);
  /** @param {string} name */
  const share = (name) => { const its = pairs(name); return 2 * [...own].filter((pair) => its.has(pair)).length / (own.size + its.size); };
  const [best] = names.map((name) => ({ name, share: name.includes(word) ? 0.9 : share(name) })).sort((a, b) => b.share - a.share);
  return best?.share > 0.35 ? best.name : "";
}

/** @template Row @param {Field<Row>} field @param {string} wanted @returns {(row: Row) => boolean} */
function equals({ value, shown }, wanted) {
  const text = wanted.toLowerCase(), limit = numeric(wanted);
  return (row) => [shown(row), value(row)].flat().some((own) => String(own ?? "").toLowerCase() === text) || (limit !== null && numeric(value(row)) === limit);
}

/** @template Row @param {Field<Row>} field @param {string} operator @param {string} wanted @param {string} term @returns {(row: Row) => boolean} */
function compares({ value }, operator, wanted, term) {
  const limit = numeric(wanted);
  if (limit === null) throw new Error(`${term}: ${wanted} is not a number; write a number without its unit`);
  /** @type {{[operator: string]: (own: number) => boolean}} */
  const tests = { "<": (own) => own < limit, "<=": (own) => own <= limit, ">": (own) => own > limit, ">=": (own) => own >= limit };
  return (row) => { const own = numeric(value(row)); return own !== null && tests[operator](own); };
}

/** @template Row @param {Field<Row>} field @param {string} wanted @param {string} term @returns {(row: Row) => boolean} */
function contains({ shown }, wanted, term) {
  if (!/^\/.*\/$/.test(wanted)) {
    const text = unquoted(wanted).toLowerCase();
    return (row) => shown(row).toLowerCase().includes(text);
  }
  const pattern = regular(wanted.slice(1, -1), term);
  let began = -Infinity;
  return (row) => {
    // The first row of a run starts the clock; a run of all rows takes less than a second.
    if (performance.now() - began > 1000) began = performance.now();
    if (performance.now() - began > MOST_MS) throw new Error(`${term}: this regular expression takes too long; write a simpler one`);
    return pattern.test(shown(row).slice(0, MOST_TEXT));
  };
}

/** Returns a regular expression whose time is bounded: no group is repeated, and little else.
 * @param {string} source @param {string} term */
function regular(source, term) {
  const plainly = source.replace(/\\./g, "x").replace(/\[[^\]]*\]/g, "x").replace(/([(*+}])\?/g, "$1"); // `(?:` opens a group, `+?` is one repeat
  const isOver = /** @param {RegExp} signs @param {number} most */ (signs, most) => (plainly.match(signs) ?? []).length > most;
  if (/\)[*+{?]/.test(plainly) || isOver(/[*+{?]/g, MOST_REPEATS) || (plainly.includes("(") && isOver(/\|/g, MOST_CHOICES)) || /\\[1-9k]/.test(source)) {
    throw new Error(`${term}: a group may not repeat, and at most ${MOST_REPEATS} of * + ? { are allowed, and ${MOST_CHOICES} of | beside groups, because it could run for hours; write a simpler one`);
  }
  try {
    return new RegExp(source, "i");
  } catch (error) {
    throw new Error(`${term}: ${error instanceof Error ? error.message : error}; correct it, or search for the text without the slashes`);
  }
}

/** Completes the last word of a filter: the name of a column, or a value behind it.
 * @template Row @param {string} text @param {Field<Row>[]} fields @param {Row[]} rows
 * @returns {string[]} whole texts for the filter */
export function completions(text, fields, rows) {
  const [, before = "", name = "", operator = "", value = ""] = /^(.*?[\s(]-?|-?)([^\s"<>=!~:()]*)(?:(!=|[:=])([^\s"()]*))?$/.exec(text) ?? [];
  if (!operator) return name || !text ? fields.map(({ head }) => same(head)).filter((head) => head.includes(same(name)) && head !== same(name)).map((head) => before + head) : [];
  const field = fields.find(({ head }) => same(head) === same(name));
  const values = field ? [...new Set(rows.slice(0, 1000).map((row) => field.shown(row)))].filter((each) => each && each.toLowerCase().startsWith(value.toLowerCase())) : [];
  return values.slice(0, MOST_VALUES).map((each) => `${before}${name}${operator}${/[\s"(),|]/.test(each) ? `"${each}"` : each}`);
}

/** Returns a value as a number; null if it is none. The service sends infinity as a text.
 * @param {unknown} value */
export function numeric(value) {
  if (typeof value === "string") {
    const text = value.trim().toLowerCase();
    if (/^[+-]?inf(inity)?$/.test(text)) return text.startsWith("-") ? -Infinity : Infinity;
    value = text === "" ? NaN : Number(text);
  }
  return typeof value === "number" && !Number.isNaN(value) ? value : null;
}
