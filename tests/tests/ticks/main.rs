//! Machines that keep time: models, random graphs and examples run tick by tick.

mod examples;
mod machines;
mod models;
mod rivals;
