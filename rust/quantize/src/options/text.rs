//! How the value of an option is read from the text of a command line: its kind says.

use serde_json::{Map, Number, Value};

use super::row::{Kind, OptionRow};
use crate::QuantizeError;

impl OptionRow {
    /// The value that these texts mean: one text, or for lists and maps as many as were given.
    ///
    /// ```
    /// use quantize_rs::options;
    /// let row = options::find("layer_bits").expect("an option");
    /// let value = row.value_of(&["conv1=16", "Gemm=uint4"])?;
    /// assert_eq!(value, serde_json::json!({"conv1": 16, "Gemm": "uint4"}));
    /// # Ok::<(), quantize_rs::QuantizeError>(())
    /// ```
    ///
    /// # Errors
    /// A text that is no such value, or two values for one name.
    pub fn value_of(&self, texts: &[&str]) -> Result<Value, QuantizeError> {
        let refused = |what: String| QuantizeError::option(self.name, what);
        if let Some(inner) = self.kind.items() {
            return texts.iter().map(|text| read(inner, text).map_err(refused)).collect();
        }
        match (&self.kind, texts) {
            (Kind::ByName(inner), _) => by_name(inner, texts).map(Value::Object).map_err(refused),
            (kind, [text]) => read(kind, text).map_err(refused),
            _ => Err(refused("has several values, expected one".to_owned())),
        }
    }
}

impl Kind {
    /// The kind of the items, where it is a list or may be one.
    pub fn items(&self) -> Option<&'static Kind> {
        match self {
            Kind::List(inner) => Some(inner),
            Kind::AnyOf(kinds) => kinds.iter().find_map(Kind::items),
            _ => None,
        }
    }
}

/// `NAME=VALUE` each, where the name may hold `=` itself.
fn by_name(kind: &Kind, texts: &[&str]) -> Result<Map<String, Value>, String> {
    let mut values = Map::new();
    for text in texts {
        let (name, value) =
            text.rsplit_once('=').ok_or_else(|| format!("is `{text}`, expected NAME=VALUE"))?;
        let value = read(kind, value)?;
        if let Some(other) = values.get(name).filter(|other| **other != value) {
            return Err(format!("gives `{name}` both {} and {}", shown(other), shown(&value)));
        }
        values.insert(name.to_owned(), value);
    }
    Ok(values)
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn read(kind: &Kind, text: &str) -> Result<Value, String> {
    let refused = |expected: &str| format!("is `{text}`, expected {expected}");
    match kind {
        Kind::Bool => text.parse().map(Value::Bool).map_err(|_| refused("true or false")),
        Kind::Integer | Kind::OneOf(_) => {
            let signed = text.parse::<i64>().map(Value::from);
            let found = signed.or_else(|_| text.parse::<u64>().map(Value::from));
            found.map_err(|_| refused("a whole number"))
        }
        Kind::Number => number(text).ok_or_else(|| refused("a number")),
        Kind::Fraction => Ok(number(text).unwrap_or_else(|| Value::from(text))),
        Kind::AnyOf(kinds) => kinds
            .iter()
            .find_map(|kind| read(kind, text).ok())
            .ok_or_else(|| refused("another value")),
        Kind::Overrides => {
            serde_json::from_str(text).map_err(|error| format!("is no JSON: {error}"))
        }
        Kind::Text | Kind::Path | Kind::Choice(_) | Kind::Open(_) | Kind::Object => {
            Ok(Value::from(text))
        }
        Kind::List(_) | Kind::ByName(_) => Err(refused("one value")),
    }
}

fn number(text: &str) -> Option<Value> {
    let number = text.parse::<f64>().ok()?;
    Number::from_f64(number).map(Value::Number)
}
