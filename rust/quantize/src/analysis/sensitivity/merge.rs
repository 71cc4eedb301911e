//! Merges the rankings of parts of the layers, which several processes measured.

use std::collections::HashSet;

use super::{Sensitivity, ranked};
use crate::QuantizeError;

impl Sensitivity {
    /// The ranking of all parts of the layers.
    ///
    /// # Errors
    /// There are no parts, they differ in model, metric, samples or engine, or two of them have the
    /// same layer.
    pub fn merge(parts: Vec<Sensitivity>) -> Result<Sensitivity, QuantizeError> {
        let refused = |what: &str| QuantizeError::option("sensitivity", what);
        let mut parts = parts.into_iter();
        let mut all = parts.next().ok_or_else(|| refused("has no parts"))?;
        for part in parts {
            let kind = |found: &Sensitivity| {
                (found.metric, found.all_but_one, found.samples, found.engine.clone())
            };
            if kind(&all) != kind(&part) {
                return Err(refused("has parts of different metrics, samples or engines"));
            }
            // Parts of an earlier version do not say of which model they are.
            if all.model != part.model && !all.model.is_empty() && !part.model.is_empty() {
                return Err(refused("has parts of different models"));
            }
            let known: HashSet<&str> = all.layers.iter().map(|layer| &*layer.name).collect();
            if let Some(twice) = part.layers.iter().find(|layer| known.contains(&*layer.name)) {
                return Err(refused(&format!(
                    "has layer `{}` in two parts: merge each part once",
                    twice.name
                )));
            }
            all.layers.extend(part.layers);
            if all.model.is_empty() {
                all.model = part.model;
            }
            let new: Vec<String> =
                part.notes.into_iter().filter(|note| !all.notes.contains(note)).collect();
            all.notes.extend(new);
        }
        let metric = all.metric;
        Ok(ranked(all, metric))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_other_models_and_parts_given_twice_are_refused() {
        let part = |model: &str, layers: &str| {
            let row = |name| {
                let rest = r#""nodes": [], "op_type": "Conv", "kind": "int8", "elements": 1,
                    "weight_error": null, "outputs": []"#;
                format!(r#"{{"name": "{name}", {rest}}}"#)
            };
            let rows: Vec<String> = layers.split_terminator(',').map(row).collect();
            let rest = r#""metric": "sqnr", "all_but_one": false, "samples": 1, "engine": "tract",
                "notes": []"#;
            let text = format!(r#"{{{rest}, "layers": [{}]}}"#, rows.join(","));
            // A file of an earlier version has no model.
            Sensitivity { model: model.to_owned(), ..Sensitivity::from_json(&text).unwrap() }
        };
        let merged = Sensitivity::merge(vec![part("", "a"), part("m", "b,c"), part("m", "")]);
        let merged = merged.unwrap();
        assert_eq!((merged.layers.len(), &*merged.model), (3, "m"));
        for (other, why) in
            [(part("n", "b"), "different models"), (part("m", "b,a"), "layer `a` in two parts")]
        {
            let error = Sensitivity::merge(vec![part("m", "a"), other]).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
