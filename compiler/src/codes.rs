//! The codes of all diagnostics. What each means is on its page: [`crate::explain`].

use crate::diag::Severity;

macro_rules! codes {
    ($($name:ident $title:literal,)*) => {
        /// The code of a diagnostic: `E01xx` syntax, `E02xx` names and structure, `E03xx` types and parameters,
        /// `E04xx` analysis, `E05xx` machine, placement and limits, `E06xx` bundles, `E07xx` files, `E08xx` ONNX; `W`
        /// warns.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = $title] $name,)*
        }

        impl Code {
            /// Every code, in order.
            pub const ALL: &[Code] = &[$(Code::$name,)*];

            /// The code as printed.
            pub const fn name(self) -> &'static str {
                match self { $(Code::$name => stringify!($name),)* }
            }

            /// What it is about, in a few words.
            pub const fn title(self) -> &'static str {
                match self { $(Code::$name => $title,)* }
            }
        }
    };
}

codes! {
    E0101 "something else should stand here",
    E0102 "a bracket, string or comment is never closed",
    E0103 "a number cannot be read",
    E0104 "brackets are nested too deeply",
    E0105 "a bracket is closed by another kind",
    E0106 "a character or escape means nothing",
    E0107 "a key or argument is given twice",
    E0201 "an unknown field",
    E0202 "a field is missing",
    E0203 "a value of the wrong kind",
    E0204 "a name that cannot be one",
    E0205 "a name is used twice",
    E0206 "a channel names something that does not exist",
    E0207 "an actor has no such port",
    E0208 "an input is not connected",
    E0209 "an input is connected twice",
    E0210 "an unknown op",
    E0211 "an unknown sub-model",
    E0212 "a sub-model contains itself",
    E0213 "an unknown parameter is used",
    E0214 "a sub-model is given the wrong arguments",
    E0215 "streams in a sub-model, or ports on a model",
    E0216 "a channel runs the wrong way",
    E0217 "a loop without an actor",
    E0218 "a model without actors",
    E0219 "modes that cannot be",
    E0220 "models that cannot be merged",
    E0301 "two ends of a channel have different types",
    E0302 "an op refuses a parameter",
    E0303 "an op refuses an input",
    E0304 "a type cannot be inferred",
    E0305 "a parameter is not a number",
    E0306 "a declaration disagrees with the op",
    E0307 "initial tokens do not fit the type",
    E0308 "the history has the wrong length",
    E0309 "an op cannot be used",
    E0310 "a token type that cannot be",
    E0311 "the URL of a stream cannot be",
    E0312 "a parameter cannot be live",
    E0313 "a gate cannot be",
    E0401 "the rates are inconsistent",
    E0402 "the graph deadlocks",
    E0403 "an iteration is too long",
    E0404 "sample rates disagree",
    E0405 "a state cannot be carried from request to request",
    E0501 "a link or a cost names an unknown device",
    E0502 "a pin names something unknown",
    E0503 "no device runs an actor",
    E0504 "the memory does not suffice",
    E0505 "a limit is exceeded",
    E0506 "a bound cannot be met",
    E0507 "a device is impossible",
    E0508 "a deadline cannot be kept",
    E0601 "a bundle is refused",
    E0602 "a graph is malformed",
    E0701 "a file cannot be read",
    E0702 "an .npy or .safetensors file is damaged",
    E0703 "an .npy file holds the wrong thing",
    E0704 "a file cannot be written",
    E0801 "a file is no ONNX model",
    E0802 "an ONNX operator has no op",
    E0803 "an ONNX model is not static",
    E0804 "data of an ONNX tensor is missing",
    E0805 "an ONNX graph is malformed",
    E0806 "an op refuses an ONNX node",
    E0807 "an import option does not fit the ONNX model",
    W0201 "an output is never read",
    W0202 "a sub-model is never used",
    W0501 "a measured variant of a kernel is unknown",
    W0502 "a plan is slower than its streams",
    W0701 "the cache of measured costs is ignored",
}

impl Code {
    /// The code of that name, in any case.
    pub fn from_name(name: &str) -> Option<Code> {
        Code::ALL
            .iter()
            .copied()
            .find(|c| c.name().eq_ignore_ascii_case(name))
    }

    /// What the code does to a compilation.
    pub fn severity(self) -> Severity {
        if self.name().starts_with('W') {
            Severity::Warning
        } else {
            Severity::Error
        }
    }

    /// Whether it is about reading or writing a file, rather than about what the file says.
    pub fn is_file(self) -> bool {
        matches!(self, Code::E0701 | Code::E0704)
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
