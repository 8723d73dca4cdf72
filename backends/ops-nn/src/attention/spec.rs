//! What attention and rotary embeddings are asked to do: parsed once, for CPUs and GPUs.

use zbmd_ir::DType;

use super::super::cx::{Cx, FLOATS, Operand, computed};
use super::super::index::strides;
use zbmd_op::OpError;

/// Most heads of a tensor.
const MAX_HEADS: u64 = 1 << 20;

/// Where heads lie in a tensor of queries, keys or values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct Heads {
    pub(in super::super) heads: usize,
    pub(in super::super) len: usize,
    pub(in super::super) size: usize,
    /// Whether heads lie side by side in each row (rank 3) rather than one behind the other.
    pub(in super::super) rows: bool,
}

impl Heads {
    /// The heads of a tensor, of which one of three dimensions does not say how many there are.
    fn of_dims(dims: &[usize], heads_if_rows: usize) -> Option<Self> {
        match *dims {
            [_, heads, len, size] => Some(Self {
                heads,
                len,
                size,
                rows: false,
            }),
            [_, len, width] if heads_if_rows > 0 && width.is_multiple_of(heads_if_rows) => {
                Some(Self {
                    heads: heads_if_rows,
                    len,
                    size: width / heads_if_rows,
                    rows: true,
                })
            }
            _ => None,
        }
    }

    /// The heads of an operand; `heads_param` is what its refusal calls the number of heads.
    fn of_operand(
        cx: &Cx<'_>,
        position: usize,
        heads_if_rows: usize,
        heads_param: &str,
    ) -> Result<Self, OpError> {
        let dims = cx.dims(position)?;
        Self::of_dims(&dims, heads_if_rows).ok_or_else(|| match cx.operand(position) {
            Ok(operand) => cx.refuse(
                position,
                format!("is {}", operand.ty),
                format!("[n, heads, length, size], or [n, length, width] with {heads_param}"),
            ),
            Err(missing) => missing,
        })
    }

    /// The first element of row `i` of head `h` of batch `b`.
    pub(super) fn at(&self, b: usize, h: usize, i: usize) -> usize {
        if self.rows {
            ((b * self.len + i) * self.heads + h) * self.size
        } else {
            ((b * self.heads + h) * self.len + i) * self.size
        }
    }

    /// The dimensions of a tensor of such heads.
    pub(super) fn dims(&self, batch: usize) -> Vec<usize> {
        match self.rows {
            true => vec![batch, self.len, self.heads * self.size],
            false => vec![batch, self.heads, self.len, self.size],
        }
    }
}

/// What is added to scores, or hides keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct MaskRule {
    /// Strides over batch, heads, queries and keys.
    pub(in super::super) steps: [usize; 4],
    /// Keys that the mask covers; the rest is hidden.
    pub(in super::super) keys: usize,
    /// Whether its elements are truth values; numbers are added otherwise.
    pub(in super::super) truth: bool,
}

/// Which keys a query sees, by their places alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct Sight {
    pub(in super::super) causal: bool,
    /// How many keys before and after its own a query sees; all of them where negative.
    pub(in super::super) left: i64,
    pub(in super::super) right: i64,
}

/// Attention of queries over keys and values with masks, caches and shared heads, as ONNX 23 to 25 have it. Operands:
/// queries, keys, values, mask, past keys, past values, lengths.
#[derive(Clone, Debug)]
pub(in super::super) struct AttentionSpec {
    pub(in super::super) dtype: DType,
    pub(in super::super) batch: usize,
    pub(in super::super) query: Heads,
    pub(in super::super) key: Heads,
    pub(in super::super) value: Heads,
    /// Whether keys and values have a cache, and its rows.
    pub(in super::super) is_cached: bool,
    pub(in super::super) past: usize,
    pub(in super::super) mask: Option<MaskRule>,
    pub(in super::super) scale: f64,
    /// 0 where scores are not capped.
    pub(in super::super) softcap: f64,
    pub(in super::super) sight: Sight,
    /// What output 3 shows: products, capped ones, masked ones, or weights (3).
    pub(in super::super) shown_mode: i64,
    /// Type of the number of valid keys of each batch.
    pub(in super::super) lengths: Option<DType>,
}

impl AttentionSpec {
    /// Keys of the cache and new ones.
    pub(in super::super) fn total(&self) -> usize {
        self.past + self.key.len
    }

    pub(in super::super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        let dtype = cx.expect(0, &FLOATS)?;
        // Tensors of rank 3 have their heads side by side in a row, and only these parameters say how many.
        let query_heads = cx.args.uint_or("q_num_heads", 0, 0, MAX_HEADS)? as usize;
        let key_heads = cx.args.uint_or("kv_num_heads", 0, 0, MAX_HEADS)? as usize;
        let heads_param = "the number of heads";
        let query = Heads::of_operand(cx, 0, query_heads, heads_param)?;
        let key = Heads::of_operand(cx, 1, key_heads, heads_param)?;
        let value = Heads::of_operand(cx, 2, key_heads, heads_param)?;
        let batch = cx.dims(0)?[0];
        check_sizes(cx, [query, key, value], batch)?;

        let past = past_rows(cx, key, value, batch)?;
        let total = past.unwrap_or(0) + key.len;
        let mask = match cx.opt(3) {
            Some(mask) => Some(mask_rule(cx, mask, query, batch, total)?),
            None => None,
        };
        // 1 / √d keeps the variance of a product of d terms at 1.
        let default_scale = 1.0 / (query.size.max(1) as f64).sqrt();
        let spec = Self {
            dtype,
            batch,
            query,
            key,
            value,
            is_cached: past.is_some(),
            past: past.unwrap_or(0),
            mask,
            scale: cx.args.float_or("scale", default_scale)?,
            softcap: cx.args.float_or("softcap", 0.0)?,
            sight: Sight {
                causal: cx.flag("is_causal", false)?,
                left: cx.args.int_or("left_window_size", -1)?,
                right: cx.args.int_or("right_window_size", -1)?,
            },
            shown_mode: cx.args.int_or("qk_matmul_output_mode", 0)?,
            lengths: cx.opt(6).map(|lengths| computed(lengths.ty.dtype)),
        };

        if let Some(lengths) = cx.opt(6)
            && lengths.dims() != [batch]
        {
            let message = format!("is {}", lengths.ty);
            return Err(cx.refuse(6, message, format!("one length for each of {batch}")));
        }
        Ok(spec)
    }
}

/// Refuses keys and values that do not fit the queries.
fn check_sizes(cx: &Cx<'_>, [query, key, value]: [Heads; 3], batch: usize) -> Result<(), OpError> {
    let fits = cx.dims(1)?[0] == batch
        && cx.dims(2)?[0] == batch
        && key.size == query.size
        && key.heads == value.heads
        && key.len == value.len
        && key.heads > 0
        && query.heads.is_multiple_of(key.heads);
    if fits {
        return Ok(());
    }

    let key_type = &cx.operand(1)?.ty;
    let query_type = &cx.operand(0)?.ty;
    Err(cx.refuse(
        1,
        format!("is {key_type}, the queries {query_type}"),
        "equal batches and sizes; heads of queries a multiple of those of keys",
    ))
}

/// The rows of the cache, if there is one.
fn past_rows(
    cx: &Cx<'_>,
    key: Heads,
    value: Heads,
    batch: usize,
) -> Result<Option<usize>, OpError> {
    let (past_keys, past_values) = match (cx.opt(4), cx.opt(5)) {
        (Some(past_keys), Some(past_values)) => (past_keys.dims(), past_values.dims()),
        (None, None) => return Ok(None),
        _ => {
            return Err(cx.refuse(
                0,
                "has one half of a cache",
                "give past keys and past values together",
            ));
        }
    };

    let fits = past_keys.len() == 4
        && past_values.len() == 4
        && past_keys[..2] == [batch, key.heads]
        && past_values[..2] == [batch, key.heads]
        && past_keys[2] == past_values[2]
        && past_keys[3] == key.size
        && past_values[3] == value.size;
    if !fits {
        let message = format!("is {}", cx.operand(4)?.ty);
        let help = format!("[{batch}, {}, length, {}]", key.heads, key.size);
        return Err(cx.refuse(4, message, help));
    }
    Ok(Some(past_keys[2]))
}

/// How a mask is broadcast over batches, heads, queries and keys.
fn mask_rule(
    cx: &Cx<'_>,
    mask: &Operand,
    query: Heads,
    batch: usize,
    total: usize,
) -> Result<MaskRule, OpError> {
    let dims = mask.dims();
    let keys = dims.last().copied().unwrap_or(1);
    let mut shape = vec![1; 4_usize.saturating_sub(dims.len())];
    shape.extend(&dims);

    let wanted = [batch, query.heads, query.len];
    let fits =
        shape.len() == 4 && keys <= total && (0..3).all(|d| shape[d] == 1 || shape[d] == wanted[d]);
    if !fits {
        let message = format!("is {}", mask.ty);
        let help = format!(
            "it must fit [{batch}, {}, {}, {total}]",
            query.heads, query.len
        );
        return Err(cx.refuse(3, message, help));
    }

    // A dimension of 1 repeats by a step of 0.
    let own_steps = strides(&shape);
    let steps = std::array::from_fn(|d| {
        let is_broadcast = shape[d] == 1 && (d < 3 || total > 1) && !(d == 3 && keys == total);
        if is_broadcast { 0 } else { own_steps[d] }
    });
    // A scalar, or a vector of one, is for all keys.
    let is_for_all_keys = keys == 1 && total > 1 && dims.len() < 2;
    Ok(MaskRule {
        steps,
        keys: if is_for_all_keys { total } else { keys },
        truth: mask.ty.dtype == DType::Bool,
    })
}

/// Rotation of pairs of elements by angles of their position. Operands: the tensor, cosines, sines, positions.
#[derive(Clone, Debug)]
pub(in super::super) struct RotarySpec {
    pub(in super::super) dtype: DType,
    pub(in super::super) batch: usize,
    pub(in super::super) heads: Heads,
    /// How many elements of a head are rotated; the rest stays.
    pub(in super::super) rotated: usize,
    /// Whether the two of a pair lie side by side.
    pub(in super::super) interleaved: bool,
    /// Type of the positions, where they are given.
    pub(in super::super) positions: Option<DType>,
    /// Rows of cosines and sines.
    pub(in super::super) angle_rows: usize,
}

impl RotarySpec {
    pub(in super::super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        let dtype = cx.expect(0, &FLOATS)?;
        let num_heads = cx.args.uint_or("num_heads", 0, 0, MAX_HEADS)? as usize;
        let heads = Heads::of_operand(cx, 0, num_heads, "`num_heads`")?;
        let batch = cx.dims(0)?[0];
        let rotated = match cx.args.uint_or("rotary_embedding_dim", 0, 0, 1 << 30)? as usize {
            0 => heads.size,
            elements => elements,
        };

        let angles = cx.dims(1)?;
        let positions = cx.opt(3);
        // With positions the tables have a row for each position, without them a row for each place of each batch.
        let angles_rank = if positions.is_some() { 2 } else { 3 };
        let refuse_angles = |help: String| match cx.operand(1) {
            Ok(operand) => cx.refuse(1, format!("is {}", operand.ty), help),
            Err(missing) => missing,
        };
        if rotated > heads.size
            || !rotated.is_multiple_of(2)
            || angles.len() != angles_rank
            || angles.last() != Some(&(rotated / 2))
            || cx.dims(2)? != angles
        {
            let help = format!("its last dimension is {}", rotated / 2);
            return Err(refuse_angles(help));
        }
        if positions.is_none() && angles[..2] != [batch, heads.len] {
            let help = format!("[{batch}, {}, {}]", heads.len, rotated / 2);
            return Err(refuse_angles(help));
        }
        if let Some(positions) = positions
            && positions.dims() != [batch, heads.len]
        {
            let message = format!("is {}", positions.ty);
            return Err(cx.refuse(3, message, format!("[{batch}, {}]", heads.len)));
        }

        Ok(Self {
            dtype,
            batch,
            heads,
            rotated,
            interleaved: cx.flag("interleaved", false)?,
            positions: positions.map(|operand| computed(operand.ty.dtype)),
            angle_rows: angles[0],
        })
    }
}
