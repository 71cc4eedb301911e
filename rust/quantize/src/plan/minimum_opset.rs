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
/// If a node cannot be converted, or an older opset was asked for, the plan falls back to one scale
/// per weight instead of one per channel.
pub(super) fn ready(model: &Model, config: Config) -> Result<PlannedModel, QuantizeError> {
    let refused = match attempt(model, &config) {
        Err(refused) if config.scales_per_channel() => refused,
        other => return other,
    };
    match refused.kind() {
        QuantizeErrorKind::Convert { .. } => {}
        QuantizeErrorKind::Option { option, .. }
            if option == "opset" && config.per_channel.is_none() => {}
        _ => return Err(refused),
    }
    let asked = config.per_channel.is_some();
    let config = Config { per_channel: Some(false), ..config };
    let mut ready = match attempt(model, &config) {
        Ok(ready) => ready,
        Err(error) => return Err(if asked { refused } else { error }),
    };
    let warning = format!("weights are quantized per tensor instead of per channel: {refused}");
    ready.plan.warnings.push(warning);
    Ok(ready)
}

fn attempt(model: &Model, config: &Config) -> Result<PlannedModel, QuantizeError> {
    let plan = Plan::draft(&Graph::of(model)?, config.clone())?;
    let need = plan.needs_more_than(model);
    let (model, conversion) = match (config.opset, &need) {
        (Some(asked), Some(need)) if need.opset > asked => {
            return Err(QuantizeError::option("opset", format!("is {asked}, but {need}")));
        }
        (Some(asked), _) if model.opset("") != Some(asked) => convert_opset(model, asked)?,
        (None, Some(need)) => {
            convert_opset(model, need.opset).map_err(|error| error.needed_by(&need.to_string()))?
        }
        _ => return Ok(PlannedModel { plan, converted: None }),
    };
    let mut plan = Plan::of(&Graph::of(&model)?, config.clone())?;
    plan.warnings.extend(conversion.warnings.into_iter().map(|lost| match (config.opset, &need) {
        (None, Some(need)) => format!("{need}; {lost}"),
        _ => lost,
    }));
    let pass = format!("opset {} → {}", conversion.from, conversion.to);
    Ok(PlannedModel { plan, converted: Some((model, Step { pass, did: conversion.changed })) })
}
