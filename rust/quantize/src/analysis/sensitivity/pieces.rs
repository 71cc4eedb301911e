//! Cuts a model into pieces, so that a piece that many layers share is prepared once.
//!
//! Preparing a part of a model takes as long as running it on several samples, and two layers share
//! everything that depends on the later one. So the topological order is cut where few bytes cross
//! the cut. A layer has a part of its own up to the next cut; after it all layers use the same
//! pieces.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use quantize_rs_onnx::reads;

use super::layers::Layer;
use crate::calibrate::engine::{Engine, Sample, Session};
use crate::error::CalibrationErrorKind as Kind;
use crate::graph::{Graph, Producer, ValueId};
use crate::transform::{Extract, extract};
use crate::{CalibrationError, QuantizeError};

/// The number of layers that begin in one piece. With fewer, passing values on takes longer than it
/// saves.
const LAYERS: usize = 12;

/// The cuts of a topological order.
pub(super) struct Cuts {
    /// The position of each node in the order.
    rank: Vec<usize>,
    /// The end of each piece: the position after its last node.
    ends: Vec<usize>,
    /// The values that cross each end: produced before it and read after it.
    alive: Vec<HashSet<ValueId>>,
    /// The values that depend on any layer: those that cross an end can be recorded.
    follows: HashSet<ValueId>,
}

impl Cuts {
    /// Cuts where the fewest bytes cross. `sizes` are those of the values that can be recorded.
    pub(super) fn of(
        graph: &Graph<'_>,
        order: &[usize],
        layers: &[Layer],
        sizes: &HashMap<String, usize>,
    ) -> Cuts {
        let mut rank = vec![usize::MAX; graph.nodes.len()];
        order.iter().enumerate().for_each(|(place, node)| rank[*node] = place);
        let spans = spans(graph, order, &rank);
        let follows = followers(graph, order, layers);
        let alive = |end: usize| {
            let across = spans.iter().filter(move |(_, (made, read))| *made < end && end <= *read);
            across.map(|(id, _)| *id)
        };
        let bytes = |end: usize| -> Option<usize> {
            let changing = alive(end).filter(|id| follows.contains(id));
            changing.map(|id| sizes.get(graph.values[id].name).copied()).sum()
        };
        let begins: Vec<usize> = layers
            .iter()
            .filter_map(|layer| layer.nodes.iter().map(|node| rank[*node]).min())
            .collect();
        let count = (begins.len() / LAYERS).max(1);
        let mut ends: Vec<usize> = Vec::new();
        for cut in 1..count {
            // Up to a third of a piece before and after.
            let (best, reach) = (cut * begins.len() / count, LAYERS / 3);
            let (from, to) = (begins[best - reach], begins[best + reach]);
            let found = (from..=to)
                .filter(|end| ends.last().is_none_or(|last| last < end))
                .filter_map(|end| Some((bytes(end)?, end.abs_diff(begins[best]), end)))
                .min();
            ends.extend(found.map(|(_, _, end)| end));
        }
        ends.push(order.len());
        let alive = ends.iter().map(|end| alive(*end).collect()).collect();
        Cuts { rank, ends, alive, follows }
    }

    /// The position of a node in the order.
    pub(super) fn rank(&self, node: usize) -> usize {
        self.rank[node]
    }

    /// The piece of the node at this position in the order.
    pub(super) fn piece_at(&self, rank: usize) -> usize {
        self.ends.partition_point(|end| *end <= rank).min(self.last())
    }

    /// Whether these values depend on layers.
    pub(super) fn expect(&self, changed: &HashSet<ValueId>) -> bool {
        changed.is_subset(&self.follows)
    }

    /// The last piece.
    pub(super) fn last(&self) -> usize {
        self.ends.len() - 1
    }

    /// Whether the value crosses the end of a piece.
    pub(super) fn hands_on(&self, piece: usize, id: ValueId) -> bool {
        self.alive[piece].contains(&id)
    }

    /// Whether a node of this piece or an earlier one produces the value.
    pub(super) fn is_made_by(&self, graph: &Graph<'_>, piece: usize, id: ValueId) -> bool {
        match graph.values[id].producer {
            Producer::Node { node, .. } => self.rank[node] < self.ends[piece],
            _ => false,
        }
    }

    /// The nodes of a piece, in the order.
    fn nodes<'a>(&self, order: &'a [usize], piece: usize) -> &'a [usize] {
        let from = piece.checked_sub(1).map_or(0, |before| self.ends[before]);
        &order[from..self.ends[piece]]
    }
}

/// For each value that nodes produce: the position of its producer and of its last consumer.
fn spans(graph: &Graph<'_>, order: &[usize], rank: &[usize]) -> HashMap<ValueId, (usize, usize)> {
    let mut spans = HashMap::new();
    for (place, node) in order.iter().enumerate() {
        for id in reads(graph.nodes[*node]).into_iter().filter_map(|name| graph.value(name)) {
            if let (Producer::Node { node, .. }, None) =
                (graph.values[id].producer, graph.constant(id))
            {
                spans.insert(id, (rank[node], place));
            }
        }
    }
    spans
}

/// The values that depend on any layer.
fn followers(graph: &Graph<'_>, order: &[usize], layers: &[Layer]) -> HashSet<ValueId> {
    let weighing: HashSet<usize> = layers.iter().flat_map(|layer| &layer.nodes).copied().collect();
    let values = layers.iter().flat_map(|layer| &layer.values);
    let mut changing: HashSet<ValueId> = values.filter_map(|name| graph.value(name)).collect();
    for index in order {
        if weighing.contains(index) || follows(graph, *index, &changing) {
            changing.extend(made(graph, *index));
        }
    }
    changing
}

/// Whether a node reads any of these values.
fn follows(graph: &Graph<'_>, node: usize, values: &HashSet<ValueId>) -> bool {
    let read = reads(graph.nodes[node]);
    read.into_iter().filter_map(|name| graph.value(name)).any(|id| values.contains(&id))
}

/// The values that a node produces.
fn made(graph: &Graph<'_>, node: usize) -> impl Iterator<Item = ValueId> {
    let outputs = graph.nodes[node].output.iter().filter(|name| !name.is_empty());
    outputs.filter_map(|name| graph.value(name))
}

/// A part of a model, and its inputs.
pub(super) struct Piece {
    pub(super) part: Extract,
    /// The values of the float model that it reads: the name in the part, and in the float model.
    pub(super) lent: HashMap<String, String>,
    /// What it produces: names in the model, in the order of the part's outputs.
    pub(super) makes: Vec<String>,
    /// The state that several layers share; `None` for the part of one layer.
    shared: Option<Shared>,
}

/// A prepared piece that several layers share, as long as any of them needs it.
#[derive(Default)]
struct Shared {
    ready: Mutex<Option<Arc<PreparedPiece>>>,
    /// The number of layers that still need it.
    users: AtomicUsize,
}

/// A part that is prepared for samples of certain shapes.
pub(super) struct PreparedPiece {
    pub(super) runner: Box<dyn Session>,
    shapes: Vec<Vec<usize>>,
}

impl Piece {
    /// A part of one layer.
    pub(super) fn own(part: Extract, lent: HashMap<String, String>, makes: Vec<String>) -> Piece {
        Piece { part, lent, makes, shared: None }
    }

    /// The prepared piece for `feed`: `before`, if it accepts these shapes.
    pub(super) fn ready(
        &self,
        engine: &dyn Engine,
        feed: &Sample,
        before: Option<Arc<PreparedPiece>>,
        cancelled: &AtomicBool,
    ) -> Result<Arc<PreparedPiece>, CalibrationError> {
        let takes =
            |ready: &Arc<PreparedPiece>| ready.runner.any_shape() || ready.shapes == shapes(feed);
        if let Some(ready) = before.filter(takes) {
            return Ok(ready);
        }
        let Extract { model, outputs, .. } = &self.part;
        let prepared = |runner| Arc::new(PreparedPiece { runner, shapes: shapes(feed) });
        let Some(shared) = &self.shared else {
            return engine.prepare_beside(model, outputs, feed).map(prepared);
        };
        // Other threads wait for the lock: they use the same prepared piece.
        let mut known = shared.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if cancelled.load(Ordering::Relaxed) {
            return Err(CalibrationError::new(Kind::Cancelled));
        }
        if let Some(ready) = known.clone().filter(takes) {
            return Ok(ready);
        }
        let made = engine.prepare_beside(model, outputs, feed).map(prepared)?;
        *known = Some(made.clone());
        Ok(made)
    }

    /// One more layer will need it.
    pub(super) fn expect_one(&self) {
        if let Some(shared) = &self.shared {
            shared.users.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// One layer less needs it; after the last one the prepared piece is dropped.
    pub(super) fn leave(&self) {
        if let Some(Shared { ready, users }) = &self.shared
            && users.fetch_sub(1, Ordering::Relaxed) == 1
        {
            *ready.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

fn shapes(feed: &Sample) -> Vec<Vec<usize>> {
    feed.inputs.iter().map(|(_, tensor)| tensor.shape.clone()).collect()
}

/// The pieces of the float model that layers share, by their position and by the changed values
/// that they read.
pub(super) struct Pieces<'a> {
    pub(super) graph: &'a Graph<'a>,
    pub(super) order: &'a [usize],
    pub(super) cuts: Cuts,
    /// Values that can be recorded.
    pub(super) sizes: &'a HashMap<String, usize>,
    /// The outputs of the model.
    pub(super) observed: &'a [String],
    known: HashMap<(usize, BTreeSet<ValueId>), Arc<Piece>>,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(
        graph: &'a Graph<'a>,
        order: &'a [usize],
        layers: &[Layer],
        sizes: &'a HashMap<String, usize>,
        observed: &'a [String],
    ) -> Pieces<'a> {
        let cuts = Cuts::of(graph, order, layers, sizes);
        Pieces { graph, order, cuts, sizes, observed, known: HashMap::new() }
    }

    /// The pieces to run when these values, which cross the end of piece `from`, have changed.
    ///
    /// # Errors
    /// A part of the model that cannot be extracted.
    pub(super) fn after(
        &mut self,
        from: usize,
        mut changed: HashSet<ValueId>,
    ) -> Result<Vec<Arc<Piece>>, QuantizeError> {
        let mut path = Vec::new();
        for piece in from + 1..=self.cuts.last() {
            let nodes = self.cuts.nodes(self.order, piece);
            let read = nodes.iter().flat_map(|node| reads(self.graph.nodes[*node]));
            let read: HashSet<ValueId> = read.filter_map(|name| self.graph.value(name)).collect();
            let given: BTreeSet<ValueId> =
                changed.iter().filter(|id| read.contains(id)).copied().collect();
            for node in nodes {
                if follows(self.graph, *node, &changed) {
                    changed.extend(made(self.graph, *node));
                }
            }
            let mut makes: Vec<ValueId> = Vec::new();
            for node in nodes {
                makes.extend(made(self.graph, *node).filter(|id| {
                    let name = self.graph.values[*id].name;
                    changed.contains(id)
                        && (self.cuts.hands_on(piece, *id)
                            || self.observed.iter().any(|own| own == name))
                }));
            }
            if !makes.is_empty() {
                path.push(self.shared(piece, given, &makes, &changed)?);
            }
            changed.retain(|id| self.cuts.hands_on(piece, *id));
        }
        Ok(path)
    }

    /// The piece that computes these values from the values `given`, which have changed.
    fn shared(
        &mut self,
        piece: usize,
        given: BTreeSet<ValueId>,
        makes: &[ValueId],
        changed: &HashSet<ValueId>,
    ) -> Result<Arc<Piece>, QuantizeError> {
        let key = (piece, given);
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let name = |id: &ValueId| self.graph.values[*id].name.to_owned();
        let is_changed =
            |name: &String| self.graph.value(name).is_some_and(|id| changed.contains(&id));
        let mut cut: Vec<String> =
            self.sizes.keys().filter(|name| !is_changed(name)).cloned().collect();
        cut.extend(key.1.iter().map(name));
        cut.sort_unstable();
        let makes: Vec<String> = makes.iter().map(name).collect();
        let part = extract(self.graph.model, &cut, &makes)?;
        let is_lent = |input: &&String| self.sizes.contains_key(*input) && !is_changed(input);
        let lent = part.inputs.iter().filter(is_lent).map(|name| (name.clone(), name.clone()));
        let made = Piece { lent: lent.collect(), part, makes, shared: Some(Shared::default()) };
        let made = Arc::new(made);
        self.known.insert(key, made.clone());
        Ok(made)
    }
}
