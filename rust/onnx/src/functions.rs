//! The functions of a model, and their calls.

use std::collections::HashMap;

use crate::error::Error;
use crate::schema::{FunctionProto, ModelProto, NodeProto, Raw, canonical_domain};
use crate::topological_sort;

/// The functions of a model, by domain, name and overload.
///
/// A function takes precedence over an operator of the same name.
#[derive(Clone, Debug)]
pub struct Functions<'m> {
    all: &'m [Raw<FunctionProto>],
    /// Position by domain, name and overload.
    by_name: HashMap<(&'m str, &'m str, &'m str), usize>,
}

impl<'m> Functions<'m> {
    /// The functions of a model.
    pub fn of(model: &'m ModelProto) -> Functions<'m> {
        let all = &model.functions[..];
        let key = |function: &'m FunctionProto| {
            (canonical_domain(&function.domain), function.name.as_str(), function.overload.as_str())
        };
        let by_name = all.iter().enumerate().map(|(at, function)| (key(function), at)).collect();
        Functions { all, by_name }
    }

    /// All functions, in the order of the file.
    pub fn all(&self) -> &'m [Raw<FunctionProto>] {
        self.all
    }

    /// The position of the function that a node calls; `None` if the node is an operator.
    pub fn called(&self, node: &NodeProto) -> Option<usize> {
        if self.all.is_empty() {
            return None;
        }
        self.by_name
            .get(&(canonical_domain(&node.domain), &*node.op_type, &*node.overload))
            .copied()
    }

    /// The functions that a node calls, directly or in its subgraphs.
    pub fn called_within(&self, node: &NodeProto) -> Vec<usize> {
        let mut found = Vec::new();
        if !self.all.is_empty() {
            self.collect(node, &mut found);
        }
        found
    }

    /// The recursion depth is that of subgraphs, which the reader limits.
    fn collect(&self, node: &NodeProto, found: &mut Vec<usize>) {
        found.extend(self.called(node));
        for body in node.subgraphs() {
            body.node.iter().for_each(|node| self.collect(node, found));
        }
    }

    /// Refuses functions that call themselves, directly or indirectly: expanding them would not
    /// end.
    pub(crate) fn refuse_recursion(&self) -> Result<(), Error> {
        let calls = |function: &Raw<FunctionProto>| {
            function.node.iter().flat_map(|node| self.called_within(node)).collect()
        };
        let calls: Vec<Vec<usize>> = self.all.iter().map(calls).collect();
        topological_sort::dependency_order(&calls).map(|_| ()).map_err(|index| {
            let place = format!("function `{}`", self.all[index].name);
            Error::structure(place, "it calls itself: functions cannot be recursive")
        })
    }
}
