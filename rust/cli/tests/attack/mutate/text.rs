//! Changes text: its lines, its words, how deep its brackets are.

use crate::random::Random;

/// What stands in files of these kinds.
const WORDS: [&str; 34] = [
    "[", "]", "{", "}", ":", ": ", ",", "-", "- ", "=", "\"", "'", "#", "\t", "  ", "\\", "&a",
    "*a", "!!int", "|", ">", "---", "null", "true", "0", "-1", "1e999", "nan", "0x10", "1_0",
    "[[a]]", "'''", "\u{0}", "\u{feff}",
];

/// A text like this one.
pub(crate) fn mutated(text: &str, random: &mut Random) -> String {
    let mut text = text.to_owned();
    for _ in 0..=random.below(3) {
        text = match random.below(5) {
            0 | 1 => lines(&text, random),
            2 | 3 => words(&text, random),
            _ => characters(&text, random),
        };
    }
    if random.once_in(200) {
        nest(&mut text, random);
    }
    text
}

fn lines(text: &str, random: &mut Random) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    if lines.is_empty() {
        return text.to_owned();
    }
    let (at, other) = (random.below(lines.len()), random.below(lines.len()));
    match random.below(6) {
        0 => drop(lines.remove(at)),
        1 => lines.insert(other, lines[at].clone()),
        2 => lines.swap(at, other),
        3 => lines[at].insert_str(0, "  "),
        4 => lines[at] = lines[at].replacen("  ", "", 1),
        _ => lines.truncate(at),
    }
    lines.join(if random.once_in(20) { "\r\n" } else { "\n" }) + "\n"
}

/// The words and what stands between them.
fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = |char: char| char.is_alphanumeric() || char == '_' || char == '.';
        let end = if word(first) {
            rest.find(|char| !word(char)).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let (piece, after) = rest.split_at(end);
        pieces.push(piece);
        rest = after;
    }
    pieces
}

fn words(text: &str, random: &mut Random) -> String {
    let mut pieces = pieces(text);
    if pieces.is_empty() {
        return text.to_owned();
    }
    let (at, other) = (random.below(pieces.len()), random.below(pieces.len()));
    let edge = random.edge().to_string();
    match random.below(5) {
        0 => drop(pieces.remove(at)),
        1 => pieces.insert(at, *random.of_all(&WORDS)),
        2 => pieces[at] = pieces[other],
        3 => pieces[at] = &edge,
        _ => pieces[at] = *random.of_all(&WORDS),
    }
    pieces.concat()
}

fn characters(text: &str, random: &mut Random) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    if characters.is_empty() {
        return text.to_owned();
    }
    let at = random.below(characters.len());
    match random.below(3) {
        0 => drop(characters.remove(at)),
        1 => characters[at] = char::from(random.byte()),
        _ => characters.insert(at, char::from(random.byte())),
    }
    characters.into_iter().collect()
}

/// Opens thousands of brackets, which a parser may follow by recursion.
fn nest(text: &mut String, random: &mut Random) {
    let open = *random.of_all(&["[", "{", "{a: ", "{\"a\":", "- ", "(", "a = [", "[[", "a.", "? "]);
    let mut at = random.below(text.len() + 1);
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    text.insert_str(at, &open.repeat(200 << random.below(7)));
}
