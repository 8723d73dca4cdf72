//! Runs over several hosts: this process is the *conductor*, which decides everything and holds sources, sinks and the last
//! committed border; on each other host an *agent* runs the workers of that host's devices.
//!
//! Each host has memory of its own for an epoch, laid out alike. What one host must know of another travels over the
//! agent's control connection ([`message`]), in both directions:
//!
//! | from | what | where it goes |
//! |---|---|---|
//! | conductor | which blocks are admitted | a queue whose tokens are blocks: the agent's admission looks at that |
//! | conductor | the committed border | the agent's word for it: workers wait for areas there |
//! | conductor | a stop | ends all waits of the agent's workers |
//! | agent | the tokens of a border that a worker has saved | the conductor's area of that border |
//! | agent | periods done, after the areas that they saved | the conductor's counters: a border is committed there, and only there |
//!
//! Besides that both send heartbeats over UDP ([`heartbeats`]): whoever is silent for a lease is lost, and its connection is
//! closed. TCP itself says nothing of a peer that is cut off. That an agent's process has ended, the end of its connection says,
//! which a small process beside it brings about at once ([`sentinel`]).
//!
//! The tokens of rings between hosts go from worker to worker ([`crate::worker::wired`]). Workers that are threads of an agent
//! share the address that it listens at; one that is a process of its own ([`agent_workers`]) listens at a port of its own, which
//! the conductor tells the others of.
//!
//! # Another program
//!
//! A run goes over to another program at a border, as on one host. Before that all agents load it, from each other and from the
//! conductor ([`bundle_offer`]), beside the epochs at work. What each epoch begins with names its bundle: an agent that has it goes over
//! ([`run_programs`]), and one that has not ends the connection, and is given it when it is connected to again.
//!
//! # In the name of a council
//!
//! With a council ([`zbmd_council`]) the conductor is one of three or five voters, agents are the others. It conducts as the
//! leader and within its lease ([`conductor_seat`]): epochs are entries of the council's log, and so are committed borders; sinks
//! give out what lies before a border whose entry is decided. Agents obey the latest epoch that they know of, and nobody when
//! they have not heard a leader for a lease ([`agent_seat`]). Nothing of this is on the path of tokens: whoever pulls from a sink
//! looks at one more number.
//!
//! A voter that could conduct and does not is one that stands by ([`standby`]). It is given the program, if it has another one
//! ([`standby_programs`]), and the state of each border before that is proposed ([`holders`]). When it is elected it goes on from the
//! last border whose outputs have all been taken from the sinks of the one before it: those that follow may come twice, with the
//! same numbers and bits. Sources that cannot be read again are mirrored ([`input_log`]): it is given their tokens as they come, and
//! feeds those behind that border first.
//!
//! # Why nothing of a fenced epoch counts
//!
//! All that counts is in the conductor's memory of the epoch: its committed border and its sinks' queues. An agent that was
//! stopped and goes on later writes into memory of its own; what it reports names its epoch, over a connection that the
//! conductor has closed; its wires are closed too, and new ones of that epoch are refused.

pub(crate) mod agent;
pub(crate) mod agent_epoch;
mod agent_run;
mod agent_seat;
mod agent_workers;
mod border_copy;
pub(crate) mod bundle_offer;
mod bundle_parts;
pub(crate) mod change_journal;
pub(crate) mod conductor;
pub(crate) mod conductor_seat;
mod gathering;
mod heartbeats;
pub(crate) mod holders;
pub(crate) mod input_log;
pub(crate) mod link;
mod message;
pub(crate) mod network_terms;
mod opener;
mod run_programs;
mod seat;
pub(crate) mod sentinel;
pub(crate) mod standby;
mod standby_programs;
