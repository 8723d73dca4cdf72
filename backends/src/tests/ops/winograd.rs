//! Convolutions of transformed tiles beside direct ones.

use bytes::Bytes;
use zbmd_ir::{BlobId, DType, Params, TiVec, TokenType, Value};

use super::channels_last::{bytes, run};

/// Numbers between −1 and 1 without a pattern.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).max(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 * 2.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A convolution of a batch of images, with a bias.
struct Convolution {
    batch: usize,
    channels: usize,
    filters: usize,
    image: [usize; 2],
    kernel: usize,
    pads: [i64; 4],
    act: &'static str,
    has_added: bool,
}

impl Convolution {
    fn params(&self, winograd: bool) -> Params {
        let weight_dims = [self.filters, self.channels, self.kernel, self.kernel];
        let weight_type = TokenType::new(DType::F32, weight_dims.map(|d| d as u32));
        let bias_type = TokenType::new(DType::F32, [self.filters as u32]);
        let pads = self.pads.map(Value::Int).to_vec();
        let params = [
            ("w", Value::Tensor(BlobId(0), weight_type)),
            ("b", Value::Tensor(BlobId(1), bias_type)),
            ("pads", Value::List(pads)),
            ("act", Value::Str(self.act.into())),
            ("winograd", Value::Int(winograd.into())),
        ];
        params.map(|(name, value)| (name.to_owned(), value)).into()
    }

    fn output_dims(&self) -> [usize; 4] {
        let [top, left, bottom, right] = self.pads.map(|pad| pad as usize);
        let [height, width] = self.image;
        let rows = height + top + bottom + 1 - self.kernel;
        let columns = width + left + right + 1 - self.kernel;
        [self.batch, rows, columns, self.filters]
    }

    /// The result, by transformed tiles or directly; of the magnitudes of all weights and inputs, if that is asked for.
    fn run(&self, winograd: bool, magnitudes: bool) -> Vec<f32> {
        let [height, width] = self.image;
        let magnitude = |v: Vec<f32>| match magnitudes {
            true => v.iter().map(|x| x.abs()).collect(),
            false => v,
        };
        let weight_count = self.filters * self.channels * self.kernel * self.kernel;
        let weights = magnitude(numbers(weight_count, 1));
        let bias = magnitude(numbers(self.filters, 2));
        let images = magnitude(numbers(self.batch * height * width * self.channels, 3));
        let output_dims = self.output_dims();
        let added = magnitude(numbers(output_dims.iter().product(), 4));

        let input_type = [self.batch, height, width, self.channels].map(|d| d as u32);
        let added_type = output_dims.map(|d| d as u32);
        let mut inputs = vec![("x", &input_type[..], &images[..])];
        if self.has_added {
            inputs.push(("added", &added_type[..], &added[..]));
        }
        let blobs = [bytes(&weights), bytes(&bias)].map(Bytes::from);
        let (result, shape) = run(
            "NnConvChannelsLast",
            &self.params(winograd),
            &blobs,
            &inputs,
        );
        assert_eq!(shape, added_type);
        result
    }
}

/// Images with and without whole tiles, of channels and filters with and without whole vectors, in one block and many.
const CONVOLUTIONS: [Convolution; 6] = [
    Convolution {
        batch: 2,
        channels: 5,
        filters: 7,
        image: [9, 11],
        kernel: 3,
        pads: [1, 1, 1, 1],
        act: "none",
        has_added: false,
    },
    Convolution {
        batch: 1,
        channels: 16,
        filters: 16,
        image: [70, 66],
        kernel: 3,
        pads: [1, 1, 1, 1],
        act: "relu",
        has_added: true,
    },
    Convolution {
        batch: 1,
        channels: 40,
        filters: 33,
        image: [14, 6],
        kernel: 3,
        pads: [0, 2, 1, 0],
        act: "silu",
        has_added: true,
    },
    Convolution {
        batch: 1,
        channels: 32,
        filters: 24,
        image: [13, 13],
        kernel: 5,
        pads: [2, 2, 2, 2],
        act: "relu",
        has_added: false,
    },
    Convolution {
        batch: 1,
        channels: 3,
        filters: 130,
        image: [8, 9],
        kernel: 5,
        pads: [0, 1, 0, 3],
        act: "none",
        has_added: true,
    },
    Convolution {
        batch: 1,
        channels: 300,
        filters: 20,
        image: [3, 4],
        kernel: 3,
        pads: [0, 0, 0, 0],
        act: "clip",
        has_added: false,
    },
];

#[test]
fn results_are_those_of_direct_sums() {
    for convolution in &CONVOLUTIONS {
        let direct = convolution.run(false, false);
        let transformed = convolution.run(true, false);

        // An error is in proportion to the sum of magnitudes, whatever becomes of the sum itself.
        let sums = Convolution {
            act: "none",
            ..*convolution
        }
        .run(false, true);
        for ((a, b), sum) in transformed.iter().zip(&direct).zip(&sums) {
            let error = (a - b).abs() / sum;
            assert!(error < 2e-6, "{a} in place of {b}, of {sum}");
        }
        assert!(transformed != direct, "both ways have the same bits");
    }
}

#[test]
fn bits_do_not_depend_on_the_cores() {
    for convolution in &CONVOLUTIONS {
        let on = |cores: usize| {
            let _team = crate::team::Team::lead(cores, |_| ()).expect("threads");
            convolution.run(true, false)
        };
        let one_core = on(1);
        for cores in [2, 3] {
            assert!(on(cores) == one_core, "on {cores} cores");
        }
    }
}

#[test]
fn windows_of_other_shapes_are_refused() {
    let registry = crate::standard_registry();
    let refusal = |dims: [u32; 4], name: &str, value: Value| {
        let weights = TokenType::new(DType::F32, dims);
        let blobs: TiVec<BlobId, Bytes> =
            vec![Bytes::from(vec![0; weights.bytes() as usize])].into();
        let params = [
            ("w".to_owned(), Value::Tensor(BlobId(0), weights)),
            ("winograd".to_owned(), Value::Int(1)),
            (name.to_owned(), value),
        ];
        let cx = crate::op::ResolveCx {
            params: &params.into(),
            connected: &["x".to_owned()],
            types: &[("x".to_owned(), TokenType::new(DType::F32, [1, 8, 8, 4]))].into(),
            blobs: &blobs,
        };
        let resolved = registry.resolve("NnConvChannelsLast", &cx);
        resolved.err().map(|error| error.to_string())
    };

    let twos = || Value::List(vec![Value::Int(2); 2]);
    let refusals = [
        refusal([4, 4, 4, 4], "group", Value::Int(1)),
        refusal([4, 4, 3, 5], "group", Value::Int(1)),
        refusal([4, 2, 3, 3], "group", Value::Int(2)),
        refusal([4, 4, 3, 3], "strides", twos()),
        refusal([4, 4, 3, 3], "dilations", twos()),
    ];
    for refusal in refusals {
        let text = refusal.expect("it is refused");
        assert!(text.contains("winograd"), "{text}");
    }
    assert_eq!(refusal([4, 4, 3, 3], "group", Value::Int(1)), None);
}
