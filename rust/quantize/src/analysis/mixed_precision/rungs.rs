//! The bit widths that each layer may get, with their sizes and errors.

use std::collections::{BTreeMap, BTreeSet};

use super::WidthSolver;
use super::frontier::WidthOption;
use crate::analysis::SliceSamples;
use crate::analysis::outputs;
use crate::graph::Graph;
use crate::options::config;
use crate::report::worst_sqnr;
use crate::{
    Config, Plan, PreprocessedModel, QuantizeError, Role, SensitivityOptions, sensitivity,
};

/// A layer, and the widths that it may get, float first.
pub(super) struct Layer {
    /// The name of its weight.
    pub(super) name: String,
    /// Other weights, which get the same width.
    pub(super) others: BTreeSet<String>,
    pub(super) rungs: Vec<WidthOption>,
}

impl Layer {
    /// The names of all its weights.
    pub(super) fn weights(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.name).chain(&self.others)
    }
}

impl WidthSolver<'_> {
    /// The size and the SQNR of each layer with each bit width, and notes about widths that are
    /// left out, because the engine does not run a model with them.
    ///
    /// # Errors
    /// The engine runs the model with none of them.
    pub(super) fn rungs(
        &mut self,
        bits: &[u8],
    ) -> Result<(Vec<Layer>, Vec<String>), QuantizeError> {
        let (mut layers, mut notes, mut refused) = (Vec::new(), Vec::new(), None);
        let bits: BTreeSet<u8> = bits.iter().copied().collect();
        for bits in bits.iter().rev() {
            match self.add_rungs(*bits, &mut layers) {
                Err(error) if error.is_of_engine() => {
                    notes.push(format!("no layer gets {bits} bits: {error}"));
                    refused.get_or_insert(error);
                }
                done => done?,
            }
        }
        match refused {
            Some(error) if notes.len() == bits.len() => Err(error),
            _ => Ok((layers, notes)),
        }
    }

    /// Adds the size and the SQNR of each layer with this bit width.
    fn add_rungs(&mut self, bits: u8, layers: &mut Vec<Layer>) -> Result<(), QuantizeError> {
        let weights = config::signed("bits", bits)?;
        let mut config = Config { weights, ..self.config.clone() };
        // Named, so that none gets other bits by default.
        config.layer_bits.insert("*".to_owned(), bits);
        let prepared = PreprocessedModel::of(self.model, config)?;
        let plan = prepared.plan();
        let made = plan.apply_cached(&prepared.model, None, None)?;
        let noise = self.noise(&prepared, &plan)?;
        let joint = plan.joint_weights(&Graph::of(&prepared.model)?);
        for (row, how) in made.report().quantized() {
            let (Some(float), Some(stored)) = (row.bytes_before, how.bytes) else { continue };
            let bytes = stored.elements + stored.scales;
            let own = how.error.map(|error| error.sqnr_db);
            let set = joint.iter().find(|set| set.contains(&row.name));
            let before = set.and_then(|set| layers.iter_mut().find(|it| set.contains(&it.name)));
            if let Some(layer) = before.filter(|layer| layer.name != row.name) {
                layer.join(&row.name, (float, bits, bytes), own.filter(|_| noise.is_none()));
                continue;
            }
            let cost = match &noise {
                Some(noise) => noise.get(&row.name).copied(),
                None => Some(own),
            };
            let Some(sqnr_db) = cost.filter(|_| row.role == Role::Weight) else { continue };
            let rung = WidthOption { bits: Some(bits), bytes, sqnr_db };
            if let Some(layer) = layers.iter_mut().find(|layer| layer.name == row.name) {
                layer.rungs.push(rung);
            } else {
                let float = WidthOption { bits: None, bytes: float, sqnr_db: None };
                let (name, others) = (row.name.clone(), BTreeSet::new());
                layers.push(Layer { name, others, rungs: vec![float, rung] });
            }
        }
        Ok(())
    }

    /// The SQNR of the outputs if a layer alone is quantized, by its name; `None` without samples.
    #[allow(clippy::type_complexity)] // used once
    fn noise(
        &mut self,
        prepared: &PreprocessedModel,
        plan: &Plan,
    ) -> Result<Option<BTreeMap<String, Option<f64>>>, QuantizeError> {
        // Without a float output, only the weights show an error.
        let shows_errors = !outputs(self.model, self.model)?.0.is_empty();
        let Some(engine) = self.engine.filter(|_| shows_errors) else { return Ok(None) };
        let (given, options) =
            (&mut SliceSamples(self.samples.iter()), SensitivityOptions::default());
        let model = &prepared.model;
        let found = self
            .stages
            .next(|control| sensitivity(model, plan, None, engine, given, &options, control))?;
        let rows = found.layers.into_iter();
        Ok(Some(rows.map(|row| (row.name, worst_sqnr(&row.outputs))).collect()))
    }
}

impl Layer {
    /// Adds another weight to the layer, with a width that its first weight has already.
    fn join(&mut self, name: &str, (float, bits, bytes): (u64, u8, u64), sqnr_db: Option<f64>) {
        if self.others.insert(name.to_owned())
            && let Some(first) = self.rungs.first_mut()
        {
            first.bytes += float;
        }
        let Some(last) = self.rungs.last_mut().filter(|rung| rung.bits == Some(bits)) else {
            return;
        };
        last.bytes += bytes;
        // The less accurate one counts.
        last.sqnr_db = match (last.sqnr_db, sqnr_db) {
            (Some(one), Some(other)) => Some(if other < one { other } else { one }),
            (one, other) => one.or(other),
        };
    }
}
