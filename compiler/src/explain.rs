//! pages
use crate::codes::Code;
/// x
pub enum Example { /// m
 Model(&'static str) }
/// x
pub struct Page;
/// p
pub fn page(_c: Code) -> Page { Page }
