//! One change somewhere in a tree, of the kinds that break programs: numbers at their extremes or beside what they
//! were, elements that are missing, twice or exchanged, texts that are no names, counts that are not true.

use super::Tree;
use crate::testing::mutate::Random;

/// Numbers that are looked at to find one that is used elsewhere.
const POOL: usize = 512;

/// Changes one value of a tree. Every field is as likely as its siblings, however large these are.
pub fn change(tree: &mut Tree, random: &mut Random) {
    let mut pool = Vec::new();
    collect(tree, &mut pool);
    descend(tree, random, &pool);
}

/// Numbers that are in the tree.
fn collect(tree: &Tree, pool: &mut Vec<u128>) {
    if pool.len() >= POOL {
        return;
    }
    match tree {
        Tree::Unsigned(value, _) => pool.push(*value),
        Tree::Option(_, Some(value)) | Tree::Variant(_, value) => collect(value, pool),
        Tree::List(items, _) | Tree::Fields(items) => {
            items.iter().for_each(|item| collect(item, pool));
        }
        _ => {}
    }
}

fn descend(tree: &mut Tree, random: &mut Random, pool: &[u128]) {
    match tree {
        Tree::Fields(fields) if !fields.is_empty() => {
            let index = random.below(fields.len());
            descend(&mut fields[index], random, pool);
        }
        Tree::List(items, claimed) => {
            if items.is_empty() || random.below(4) == 0 {
                change_list(items, claimed, random);
            } else {
                let index = random.below(items.len());
                descend(&mut items[index], random, pool);
            }
        }
        Tree::Variant(index, value) => {
            if random.below(5) == 0 {
                *index = random.below(8) as u32;
            } else {
                descend(value, random, pool);
            }
        }
        Tree::Option(tag, value) => match value {
            Some(value) if random.below(3) > 0 => descend(value, random, pool),
            _ if random.below(2) == 0 => {
                *tag = 0;
                *value = None;
            }
            _ => {
                *tag = 1;
                *value = Some(Box::new(Tree::Unsigned(random.below(4) as u128, 32)));
            }
        },
        leaf => change_leaf(leaf, random, pool),
    }
}

fn change_leaf(leaf: &mut Tree, random: &mut Random, pool: &[u128]) {
    match leaf {
        Tree::Byte(byte) => {
            *byte = [0, 1, 2, 0x7f, 0x80, 0xff, byte.wrapping_add(1)][random.below(7)]
        }
        Tree::Unsigned(value, bits) => *value = number(*value, *bits, random, pool),
        Tree::Signed(value, bits) => {
            let max = i128::MAX >> (128 - *bits);
            let choices = [0, 1, -1, max, -max - 1, value.wrapping_neg()];
            *value = choices[random.below(choices.len())];
        }
        Tree::Float(bytes) => {
            let value = [0.0, -0.0, 1e300, -1.0, f64::NAN, f64::INFINITY, 1e-300];
            let value = value[random.below(value.len())];
            *bytes = match bytes.len() {
                4 => (value as f32).to_le_bytes().to_vec(),
                _ => value.to_le_bytes().to_vec(),
            };
        }
        Tree::Text(text) => change_text(text, random),
        _ => {}
    }
}

fn number(value: u128, bits: u32, random: &mut Random, pool: &[u128]) -> u128 {
    let max = u128::MAX >> (128 - bits);
    let chosen = match random.below(8) {
        0 => value.wrapping_add(1),
        1 => value.wrapping_sub(1),
        2 => 1u128 << random.below(bits as usize),
        3 => (1u128 << random.below(bits as usize)).wrapping_sub(1),
        4 => max - random.below(3) as u128,
        5 => random.below(3) as u128,
        6 => value.wrapping_mul(2 + random.below(3) as u128),
        _ if pool.is_empty() => 64,
        _ => pool[random.below(pool.len())],
    };
    chosen & max
}

fn change_list(items: &mut Vec<Tree>, claimed: &mut Option<u64>, random: &mut Random) {
    const MAX_COPIES: usize = 64;
    if items.is_empty() {
        *claimed = Some(1 << random.below(63));
        return;
    }
    let index = random.below(items.len());
    match random.below(8) {
        0 | 1 => drop(items.remove(index)),
        2 => items.insert(index, items[index].clone()),
        3 | 4 => {
            let other = random.below(items.len());
            items.swap(index, other);
        }
        5 => items.truncate(index),
        6 => {
            let copies = vec![items[index].clone(); 1 + random.below(MAX_COPIES)];
            items.extend(copies);
        }
        _ => *claimed = Some(1 << random.below(63)),
    }
}

fn change_text(text: &mut Vec<u8>, random: &mut Random) {
    const LONG: usize = 5000;
    match random.below(9) {
        0 => text.clear(),
        1 => *text = vec![b'a'; LONG],
        2 => text.push(0),
        3 => text.extend_from_slice(b"\x1b[2J"),
        4 => *text = b"../../etc/passwd".to_vec(),
        5 => text.push(0xff),
        6 => text.push(b'x'),
        7 => *text = b"tail".to_vec(),
        _ => *text = b"cuda".to_vec(),
    }
}
