//! Moves between placements within a number of stages: each component has a stage of its own beside its devices, and no
//! move breaks a limit.
//!
//! Where few stages are allowed, most moves of a single unit add some, so that a search over devices alone stands still.
//! Here a move takes along what depends on a unit within its stage, or all of it that is on one device: what begins or
//! ends a stretch of work changes by more than one unit, and stretches change devices as a whole.

use super::anneal::{Moves, RandomUnits};
use super::merged::MergedProblem;
use super::stages::{ComponentInput, StageGraph};
use super::state::PlacementState;

/// A channel between components, seen from one of them.
#[derive(Clone, Copy)]
struct Neighbour {
    /// The other component.
    component: u32,
    /// The unit of the other component.
    unit: u32,
    /// The unit of this one.
    own_unit: u32,
}

/// What the moves know of the graph, and the limit that they keep.
pub(crate) struct StagedGraph {
    last_stage: u32,
    component_of: Vec<u32>,
    units_of: Vec<Vec<u32>>,
    writers: Vec<Vec<Neighbour>>,
    readers: Vec<Vec<Neighbour>>,
}

impl StagedGraph {
    /// For placements of at most so many stages. `None` where units have parts in several components.
    pub(crate) fn of(
        stage_graph: &StageGraph,
        merged: &MergedProblem,
        max_stages: u32,
    ) -> Option<Self> {
        let component_of = stage_graph.component_of_units(merged.units(), &merged.unit_of_node)?;
        let components = stage_graph.inputs().count();
        let mut graph = Self {
            last_stage: max_stages.checked_sub(1)?,
            units_of: vec![Vec::new(); components],
            writers: vec![Vec::new(); components],
            readers: vec![Vec::new(); components],
            component_of,
        };

        for (unit, &component) in (0u32..).zip(&graph.component_of) {
            graph.units_of[component as usize].push(unit);
        }

        for (component, inputs) in (0u32..).zip(stage_graph.inputs()) {
            for &ComponentInput {
                writer_component,
                writer_unit,
                reader_unit,
            } in inputs
            {
                graph.writers[component as usize].push(Neighbour {
                    component: writer_component,
                    unit: writer_unit,
                    own_unit: reader_unit,
                });
                graph.readers[writer_component as usize].push(Neighbour {
                    component,
                    unit: reader_unit,
                    own_unit: writer_unit,
                });
            }
        }
        Some(graph)
    }

    /// Whether stages are within the limit.
    pub(crate) fn allows(&self, stage_of: &[u32]) -> bool {
        stage_of.iter().all(|&stage| stage <= self.last_stage)
    }
}

/// What moves beside a unit, of what shares its stage and its device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Nothing.
    Alone,
    /// What it depends on.
    Writers,
    /// What depends on it.
    Readers,
    /// What is connected with it.
    All,
}

/// Moves of units, and of connected parts of a stage.
pub(crate) struct StagedMoves<'a> {
    graph: &'a StagedGraph,
    state: PlacementState<'a>,
    /// Stage of each component.
    stage_of: Vec<u32>,
    random: RandomUnits<'a>,
    /// Units and components that the last move changed, with what they were.
    moved_units: Vec<(u32, u32)>,
    moved_components: Vec<(u32, u32)>,
    /// Components that a move takes along, and whether each is one of them.
    group: Vec<u32>,
    is_in_group: Vec<bool>,
}

impl<'a> StagedMoves<'a> {
    /// Moves from a placement on, whose components have these stages: none beyond the limit.
    pub(crate) fn new(
        merged: &'a MergedProblem,
        graph: &'a StagedGraph,
        start: Vec<u32>,
        stage_of: Vec<u32>,
        seed: u64,
    ) -> Self {
        Self {
            state: PlacementState::new(merged, start),
            random: RandomUnits::new(merged, seed),
            moved_units: Vec::new(),
            moved_components: Vec::new(),
            group: Vec::new(),
            is_in_group: vec![false; stage_of.len()],
            stage_of,
            graph,
        }
    }

    /// Collects the component of a unit, and those within its reach.
    fn collect_group(&mut self, unit: usize, reach: Reach) {
        for &component in &self.group {
            self.is_in_group[component as usize] = false;
        }
        self.group.clear();
        let first = self.graph.component_of[unit];
        self.is_in_group[first as usize] = true;
        self.group.push(first);

        let mut next = 0;
        while let Some(&component) = self.group.get(next) {
            next += 1;
            let graph = self.graph;
            if matches!(reach, Reach::Writers | Reach::All) {
                self.collect_of(component, &graph.writers[component as usize]);
            }
            if matches!(reach, Reach::Readers | Reach::All) {
                self.collect_of(component, &graph.readers[component as usize]);
            }
        }
    }

    /// Collects the neighbours of a component that are in its stage, which are on its device then.
    fn collect_of(&mut self, component: u32, neighbours: &[Neighbour]) {
        let stage = self.stage_of[component as usize];
        for neighbour in neighbours {
            let other = neighbour.component as usize;
            // Of a component of several units only one moves at a time.
            let is_alone = self.graph.units_of[other].len() == 1;
            if self.stage_of[other] == stage && is_alone && !self.is_in_group[other] {
                self.is_in_group[other] = true;
                self.group.push(neighbour.component);
            }
        }
    }

    /// Moves the group to a device, and to a stage that its inputs and outputs allow; of the component of `unit` that
    /// unit alone. Whether that was possible.
    fn move_group(&mut self, unit: usize, device: u32) -> bool {
        let Some((first, last)) = self.allowed_stages(unit, device) else {
            return false;
        };
        let own_stage = self.stage_of[self.group[0] as usize];
        let stage = match self.random.rng.below(4) {
            0 => first,
            1 => last,
            _ => own_stage.clamp(first, last),
        };

        for index in 0..self.group.len() {
            let component = self.group[index];
            let moved = match index {
                0 => unit as u32,
                _ => self.graph.units_of[component as usize][0],
            };
            self.relocate(moved, device);
            let old_stage = std::mem::replace(&mut self.stage_of[component as usize], stage);
            if old_stage != stage {
                self.moved_components.push((component, old_stage));
            }
        }
        true
    }

    /// The stages that the group can have on a device: the first and the last.
    fn allowed_stages(&self, unit: usize, device: u32) -> Option<(u32, u32)> {
        let mut first = 0;
        let mut last = self.graph.last_stage;
        for (index, &component) in self.group.iter().enumerate() {
            let device_of = |own: u32| match index == 0 && own as usize != unit {
                true => self.state.placement[own as usize],
                false => device,
            };
            if index > 0 {
                let moved = self.graph.units_of[component as usize][0];
                if !self.random.can_run(moved as usize, device) {
                    return None;
                }
            }

            let is_hop = |neighbour: &Neighbour| {
                self.state.placement[neighbour.unit as usize] != device_of(neighbour.own_unit)
            };
            for writer in &self.graph.writers[component as usize] {
                if !self.is_in_group[writer.component as usize] {
                    let stage = self.stage_of[writer.component as usize];
                    first = first.max(stage + u32::from(is_hop(writer)));
                }
            }
            for reader in &self.graph.readers[component as usize] {
                if !self.is_in_group[reader.component as usize] {
                    let stage = self.stage_of[reader.component as usize];
                    last = last.min(stage.checked_sub(u32::from(is_hop(reader)))?);
                }
            }
        }
        (first <= last).then_some((first, last))
    }

    fn relocate(&mut self, unit: u32, device: u32) {
        let home = self.state.placement[unit as usize];
        if home != device {
            self.state.relocate(unit as usize, device);
            self.moved_units.push((unit, home));
        }
    }

    /// The device of a unit that shares a net with this one, if it can run this one, too.
    fn device_of_neighbour(&mut self, unit: usize) -> Option<u32> {
        let neighbour = self.random.neighbour(unit)?;
        let device = self.state.placement[neighbour];
        self.random.can_run(unit, device).then_some(device)
    }

    /// Moves a unit with what is in its reach.
    fn move_unit(&mut self, unit: usize, device: u32, reach: Reach) -> bool {
        // Of a component of several units only one moves at a time.
        let component = self.graph.component_of[unit] as usize;
        let reach = match self.graph.units_of[component].len() {
            1 => reach,
            _ => Reach::Alone,
        };
        self.collect_group(unit, reach);
        self.move_group(unit, device)
    }

    /// Two units change places.
    fn swap(&mut self, unit: usize) -> bool {
        let partner = self.random.unit();
        let home = self.state.placement[unit];
        let partner_home = self.state.placement[partner];
        home != partner_home
            && self.random.can_run(unit, partner_home)
            && self.random.can_run(partner, home)
            && self.move_unit(unit, partner_home, Reach::Alone)
            && self.move_unit(partner, home, Reach::Alone)
    }

    fn take_back(&mut self) {
        while let Some((unit, device)) = self.moved_units.pop() {
            self.state.relocate(unit as usize, device);
        }
        while let Some((component, stage)) = self.moved_components.pop() {
            self.stage_of[component as usize] = stage;
        }
    }
}

impl Moves for StagedMoves<'_> {
    type Applied = ();

    fn state(&self) -> &PlacementState<'_> {
        &self.state
    }

    fn can_move(&self) -> bool {
        self.random.can_move()
    }

    fn apply_random_move(&mut self) -> Option<()> {
        self.moved_units.clear();
        self.moved_components.clear();
        let unit = self.random.unit();
        let kind = self.random.rng.below(8);
        if kind == 0 {
            if !self.swap(unit) {
                self.take_back();
                return None;
            }
            return Some(());
        }

        let device = match kind {
            1 | 2 => self.random.choice(unit),
            _ => self.device_of_neighbour(unit)?,
        };
        let reach = match kind {
            1 | 3 => Reach::Alone,
            2 => Reach::All,
            4 => Reach::Writers,
            5 => Reach::Readers,
            _ => {
                [Reach::Alone, Reach::Writers, Reach::Readers, Reach::All][self.random.rng.below(4)]
            }
        };
        let has_moved = self.move_unit(unit, device, reach);
        (has_moved && !(self.moved_units.is_empty() && self.moved_components.is_empty()))
            .then_some(())
    }

    fn undo(&mut self, (): ()) {
        self.take_back();
    }

    fn random_fraction(&mut self) -> f64 {
        self.random.rng.unit()
    }
}
