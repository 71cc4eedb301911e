//! Converts a model to the minimum opset that its plan needs.

use quantize_rs_onnx::Model;

use super::Plan;
use crate::error::QuantizeErrorKind;
use crate::graph::Graph;
use crate::transform::{Step, convert_opset};
use crate::{Config, QuantizeError};

/// A plan and its model.
pub(super) struct PlannedModel {
    pub(super) plan: Plan,
    /// The converted model, if a conversion was necessary.
    pub(super) converted: Option<(Model, Step)>,
}

/// Plans a model, and converts it if the plan needs a newer opset.
///
/// If a node cannot be converted, the plan falls back to one scale per weight instead of one per
/// channel, which works with older opsets.
pub(super) fn ready(model: &Model, config: Config) -> Result<PlannedModel, QuantizeError> {
    let refused = match attempt(model, &config) {
        Err(refused) if config.per_channel => refused,
        other => return other,
    };
    let QuantizeErrorKind::Convert { .. } = refused.kind() else { return Err(refused) };
    let config = Config { per_channel: false, ..config };
    let Ok(mut ready) = attempt(model, &config) else { return Err(refused) };
    let warning = format!("weights are quantized per tensor instead of per channel: {refused}");
    ready.plan.warnings.push(warning);
    Ok(ready)
}

fn attempt(model: &Model, config: &Config) -> Result<PlannedModel, QuantizeError> {
    let plan = Plan::draft(&Graph::of(model)?, config.clone())?;
    let need = plan.needs_more_than(model);
    let (model, conversion) = match (config.opset, need) {
        (Some(asked), Some(need)) if need.opset > asked => {
            return Err(QuantizeError::option("opset", format!("is {asked}, but {need}")));
        }
        (Some(asked), _) if model.opset("") != Some(asked) => convert_opset(model, asked)?,
        (None, Some(need)) => {
            convert_opset(model, need.opset).map_err(|error| error.needed_by(&need.to_string()))?
        }
        _ => return Ok(PlannedModel { plan, converted: None }),
    };
    let plan = Plan::of(&Graph::of(&model)?, config.clone())?;
    let pass = format!("opset {} → {}", conversion.from, conversion.to);
    Ok(PlannedModel { plan, converted: Some((model, Step { pass, did: conversion.changed })) })
}
