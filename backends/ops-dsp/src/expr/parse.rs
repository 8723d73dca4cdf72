//! The grammar of expressions: text to a tree. Knows no types.
//!
//! ```text
//! select  = or ["?" select ":" select]          or = and {"||" and}      and = compare {"&&" compare}
//! compare = sum [("<" | "<=" | ">" | ">=" | "==" | "!=") sum]
//! sum     = product {("+" | "-") product}       product = unary {("*" | "/") unary}
//! unary   = ["-" | "!"] unary | number | name | name "(" select {"," select} ")" | "(" select ")"
//! ```

/// Nesting of one expression; the parser and everything after it recurse this deep.
const MAX_DEPTH: usize = 96;

/// Bytes of one expression: bounds the depth of left-leaning trees, which [`MAX_DEPTH`] does not.
const MAX_TEXT: usize = 4096;

/// A part of an expression and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExprNode {
    pub(crate) kind: ExprKind,
    /// Byte offset in the text.
    pub(crate) at: usize,
}

/// What a [`ExprNode`] is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ExprKind {
    /// A literal; whether it is written as an integer.
    Number(f64, bool),
    Name(String),
    /// `-` and `!`.
    Prefix(char, Box<ExprNode>),
    Binary(Operator, Box<ExprNode>, Box<ExprNode>),
    Select(Box<[ExprNode; 3]>),
    Call(String, Vec<ExprNode>),
}

/// Binary operators.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operator {
    Or,
    And,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Equal,
    NotEqual,
    Add,
    Sub,
    Mul,
    Div,
}

/// Something wrong at a place of the expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExprError {
    pub(crate) at: usize,
    pub(crate) message: String,
    pub(crate) help: String,
}

impl ExprError {
    pub(crate) fn new(at: usize, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            at,
            message: message.into(),
            help: help.into(),
        }
    }
}

/// The tree of an expression.
pub(crate) fn parse(text: &str) -> Result<ExprNode, ExprError> {
    if text.len() > MAX_TEXT {
        let message = format!("is {} bytes long, the limit is {MAX_TEXT}", text.len());
        return Err(ExprError::new(
            0,
            message,
            "put parts of it into other actors",
        ));
    }
    let mut parser = Parser {
        text,
        at: 0,
        depth: 0,
    };
    let node = parser.select()?;
    match parser.peek() {
        None => Ok(node),
        Some(c) => Err(parser.unexpected(&format!("`{c}`"), "an operator or the end")),
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn rest(&mut self) -> &str {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        &self.text[self.at..]
    }

    fn peek(&mut self) -> Option<char> {
        self.rest().chars().next()
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn expect(&mut self, token: &str) -> Result<(), ExprError> {
        if self.eat(token) {
            return Ok(());
        }
        let found = self
            .peek()
            .map_or("the end".to_owned(), |c| format!("`{c}`"));
        Err(self.unexpected(&found, &format!("`{token}`")))
    }

    fn unexpected(&self, found: &str, want: &str) -> ExprError {
        ExprError::new(
            self.at,
            format!("found {found}"),
            format!("expected {want}"),
        )
    }

    fn select(&mut self) -> Result<ExprNode, ExprError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let help = "put parts of it into other actors";
            return Err(ExprError::new(
                self.at,
                format!("nested over {MAX_DEPTH} deep"),
                help,
            ));
        }
        let condition = self.binary(0)?;
        let at = self.at;
        let node = if self.eat("?") {
            let yes = self.select()?;
            self.expect(":")?;
            let no = self.select()?;
            ExprNode {
                kind: ExprKind::Select(Box::new([condition, yes, no])),
                at,
            }
        } else {
            condition
        };
        self.depth -= 1;
        Ok(node)
    }

    fn binary(&mut self, level: usize) -> Result<ExprNode, ExprError> {
        use Operator::*;
        // Longer operators first: `<=` is not `<`.
        const LEVELS: [&[(&str, Operator)]; 5] = [
            &[("||", Or)],
            &[("&&", And)],
            &[
                ("<=", LessEqual),
                ("<", Less),
                (">=", GreaterEqual),
                (">", Greater),
                ("==", Equal),
                ("!=", NotEqual),
            ],
            &[("+", Add), ("-", Sub)],
            &[("*", Mul), ("/", Div)],
        ];
        let Some(operators) = LEVELS.get(level) else {
            return self.unary();
        };
        let mut left = self.binary(level + 1)?;
        loop {
            self.rest();
            let at = self.at;
            let Some(&(_, operator)) = operators.iter().find(|(token, _)| self.eat(token)) else {
                return Ok(left);
            };
            let right = self.binary(level + 1)?;
            left = ExprNode {
                kind: ExprKind::Binary(operator, Box::new(left), Box::new(right)),
                at,
            };
        }
    }

    fn unary(&mut self) -> Result<ExprNode, ExprError> {
        let c = self.peek();
        let at = self.at;
        match c {
            Some(sign @ ('-' | '!')) => {
                self.at += 1;
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    return Err(ExprError::new(
                        at,
                        format!("nested over {MAX_DEPTH} deep"),
                        "",
                    ));
                }
                let node = self.unary()?;
                self.depth -= 1;
                Ok(ExprNode {
                    kind: ExprKind::Prefix(sign, Box::new(node)),
                    at,
                })
            }
            Some('(') => {
                self.at += 1;
                let node = self.select()?;
                self.expect(")")?;
                Ok(node)
            }
            Some(c) if c.is_ascii_digit() || c == '.' => self.number(),
            Some(c) if c.is_alphabetic() || c == '_' => self.name(),
            Some(c) => Err(self.unexpected(&format!("`{c}`"), "a number, a name or `(`")),
            None => Err(self.unexpected("the end", "a number, a name or `(`")),
        }
    }

    fn number(&mut self) -> Result<ExprNode, ExprError> {
        let at = self.at;
        let bytes = self.text.as_bytes();
        let mut end = at;
        while let Some(&b) = bytes.get(end) {
            let exponent_sign =
                matches!(b, b'+' | b'-') && end > at && matches!(bytes[end - 1], b'e' | b'E');
            if !(b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'_') || exponent_sign) {
                break;
            }
            end += 1;
        }
        let word = self.text[at..end].replace('_', "");
        match word.parse::<f64>() {
            Ok(value) if value.is_finite() => {
                self.at = end;
                let integer = word.bytes().all(|b| b.is_ascii_digit()) && value < 9e15;
                Ok(ExprNode {
                    kind: ExprKind::Number(value, integer),
                    at,
                })
            }
            _ => Err(ExprError::new(
                at,
                format!("`{word}` is no number"),
                "such as 0.5 or 1e-3",
            )),
        }
    }

    fn name(&mut self) -> Result<ExprNode, ExprError> {
        let at = self.at;
        let rest = &self.text[at..];
        let len = rest
            .find(|c: char| !(c.is_alphanumeric() || c == '_'))
            .unwrap_or(rest.len());
        let name = rest[..len].to_owned();
        self.at += len;
        if !self.eat("(") {
            return Ok(ExprNode {
                kind: ExprKind::Name(name),
                at,
            });
        }
        let mut arguments = vec![self.select()?];
        while self.eat(",") {
            arguments.push(self.select()?);
        }
        self.expect(")")?;
        Ok(ExprNode {
            kind: ExprKind::Call(name, arguments),
            at,
        })
    }
}

/// Names in order of first appearance, functions left out.
pub(crate) fn names(node: &ExprNode, out: &mut Vec<String>) {
    match &node.kind {
        ExprKind::Number(..) => {}
        ExprKind::Name(name) => {
            if !out.contains(name) {
                out.push(name.clone());
            }
        }
        ExprKind::Prefix(_, a) => names(a, out),
        ExprKind::Binary(_, a, b) => {
            names(a, out);
            names(b, out);
        }
        ExprKind::Select(parts) => parts.iter().for_each(|p| names(p, out)),
        ExprKind::Call(_, arguments) => arguments.iter().for_each(|p| names(p, out)),
    }
}
