//! The operator set that a plan needs: a model of an older one is converted, and no further than
//! that.

use quantize_rs_onnx::Model;

use super::Plan;
use crate::error::QuantizeErrorKind;
use crate::graph::Graph;
use crate::transform::{Step, convert_opset};
use crate::{Config, QuantizeError};

/// A plan, and the model that it is for.
pub(super) struct Ready {
    pub(super) plan: Plan,
    /// The model, where it had to be converted.
    pub(super) converted: Option<(Model, Step)>,
}

/// The plan for a model, which is converted where its operator set is too old for the plan.
///
/// One with a node that cannot be converted gets the plan that needs less: one scale for a weight
/// instead of one a channel.
pub(super) fn ready(model: &Model, config: Config) -> Result<Ready, QuantizeError> {
    let refused = match attempt(model, &config) {
        Err(refused) if config.per_channel => refused,
        other => return other,
    };
    let QuantizeErrorKind::Convert { .. } = refused.kind() else { return Err(refused) };
    let config = Config { per_channel: false, ..config };
    let Ok(mut ready) = attempt(model, &config) else { return Err(refused) };
    let warning = format!("weights have one scale and not one a channel: {refused}");
    ready.plan.warnings.push(warning);
    Ok(ready)
}

fn attempt(model: &Model, config: &Config) -> Result<Ready, QuantizeError> {
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
        _ => return Ok(Ready { plan, converted: None }),
    };
    let plan = Plan::of(&Graph::of(&model)?, config.clone())?;
    let pass = format!("opset {} → {}", conversion.from, conversion.to);
    Ok(Ready { plan, converted: Some((model, Step { pass, did: conversion.changed })) })
}
