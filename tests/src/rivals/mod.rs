//! What a machine that keeps time is compared with: the same actors on the same nodes, with the same links, but run by
//! nodes that know no tick of each other. Only times are simulated, no tokens.
//!
//! Both rivals are given what costs them nothing here and would outside: looking at a flag, dispatching an actor, the
//! header of a message, acknowledgements on links, and memory for messages on their way.

mod applications;
mod borders;
mod engine;
mod model;
mod table;

pub use applications::{Effort, applications, measure_applications};
pub use borders::copies_line;
pub use engine::{Discipline, Load, Measured, simulate};
pub use model::{RivalModel, copies};
pub use table::{Comparison, compare, table};
