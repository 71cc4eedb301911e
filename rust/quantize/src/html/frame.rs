//! The frame of every HTML report: head, style, script, and a policy that allows nothing else.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::numbers::{name, visible};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// Nothing is loaded, and no script runs except [`SCRIPT`]; this is its SHA-256.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; \
                      script-src 'sha256-x6iTGQ/DiUJ9Smap4YcPE+wHxqWhFnbwjnPnx3RupOw='";

/// An HTML report with these parts.
pub(super) fn page(title: &str, header: &Markup, main: &[Markup]) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { (visible(title)) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header { (header) }
                main { @for part in main { (part) } }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

/// A key figure with its label, and what it is about.
pub(super) fn tile(label: &str, value: &str, about: &str) -> Markup {
    html! {
        div {
            dt { (label) }
            dd { (value) @if !about.is_empty() { small { (name(about)) } } }
        }
    }
}

/// A highlighted list.
pub(super) fn list(title: &str, class: &str, lines: &[String]) -> Markup {
    html! {
        @if !lines.is_empty() {
            section class=(class) {
                h2 { (title) }
                ul { @for line in lines { li { (name(line)) } } }
            }
        }
    }
}

/// The notes of an engine.
pub(super) fn ran(notes: &[String]) -> Markup {
    html! { @for note in notes { p.note { (name(note)) } } }
}
