//! From messages to the imported graph: types follow from asking each op, constants are computed by the kernels
//! themselves, branches on constants are taken.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use bytes::Bytes;
use rten_onnx::onnx::{
    AttributeProto, Dimension, GraphProto, ModelProto, NodeProto, ValueInfoProto,
};
use zbmd_backends::TensorOp;
use zbmd_backends::op::{OpError, Registry, Signature};
use zbmd_ir::{DType, Params, TokenType, Value, limits};

use super::catalogue::{compute, resolve};
use super::error::OnnxError;
use super::graph::{Graph, Node, Origin, ValueId};
use super::proto::{self, External};
use super::{ImportOptions, SetValue, contrib, normalise};

/// Bytes of a constant that is computed, unless it is at most four times as large as its operands: a node such as
/// `Expand` would put gigabytes into the bundle.
pub(super) const MAX_FOLDED: u64 = 1 << 24;
/// Oldest opset of the default domain.
const MIN_OPSET: i64 = 1;

/// Attributes of a node by name.
pub(super) type Attributes = BTreeMap<String, AttributeProto>;

/// Shapes of what each `Reshape` takes, by the node's name.
pub(super) type ReshapedShapes = BTreeMap<String, Vec<u32>>;

/// An imported model.
pub(super) struct Imported {
    pub(super) graph: Graph,
    /// As it was imported for samples one by one; empty otherwise.
    pub(super) reshaped: ReshapedShapes,
}

/// Imports a parsed model. For batches of several samples, `single` is what a `Reshape` takes in batches of one.
pub(super) fn import(
    model: ModelProto,
    dir: Option<&Path>,
    registry: &Registry,
    options: &ImportOptions,
    single: ReshapedShapes,
) -> Result<Imported, OnnxError> {
    let opset = opset(&model)?;
    let graph = model
        .graph
        .ok_or_else(|| OnnxError::Parse("it holds no graph".to_owned()))?;
    let mut import = Import {
        graph: Graph::default(),
        registry,
        options,
        files: External::new(dir),
        opset,
        scopes: vec![BTreeMap::new()],
        names: BTreeMap::new(),
        set: Vec::new(),
        dims: Vec::new(),
        batch_names: BTreeSet::new(),
        reshaped: single,
    };

    // Options that nothing used are wrong names: known only once all has been imported.
    import.import_graph(graph)?;
    import.check_options()?;
    import.check_batch()?;
    Ok(Imported {
        graph: import.graph,
        reshaped: import.reshaped,
    })
}

fn opset(model: &ModelProto) -> Result<i64, OnnxError> {
    let mut imports = model.opset_import.iter();
    let default_import = imports.find(|import| is_default_domain(import.domain.as_deref()));
    match default_import.and_then(|import| import.version) {
        Some(version) if version >= MIN_OPSET => Ok(version),
        Some(version) => Err(OnnxError::Parse(format!(
            "it uses opset {version}, older than {MIN_OPSET}"
        ))),
        None => Err(OnnxError::Parse(
            "it does not say which opset it uses".to_owned(),
        )),
    }
}

/// Whether a domain is that of ONNX's own operators, which files leave out or name.
fn is_default_domain(domain: Option<&str>) -> bool {
    domain.is_none_or(|domain| domain.is_empty() || domain == "ai.onnx")
}

pub(super) struct Import<'a> {
    pub(super) graph: Graph,
    registry: &'a Registry,
    options: &'a ImportOptions,
    files: External<'a>,
    pub(super) opset: i64,
    /// Values by name, those of enclosing graphs first.
    scopes: Vec<BTreeMap<String, ValueId>>,
    /// Names given to nodes, and how often.
    names: BTreeMap<String, usize>,
    /// Options that were used.
    set: Vec<String>,
    dims: Vec<String>,
    /// Names of dimensions that are the first of an input, where samples are computed together.
    batch_names: BTreeSet<String>,
    /// See [`Self::reshape_batch`].
    reshaped: ReshapedShapes,
}

impl Import<'_> {
    fn import_graph(&mut self, mut proto: GraphProto) -> Result<(), OnnxError> {
        // Initializers go first: models before IR version 4 list them among the inputs too.
        self.add_initializers(&mut proto)?;
        if self.options.batch.is_some() {
            let first_dims = proto
                .input
                .iter()
                .filter_map(|input| self.batch_name(input));
            self.batch_names = first_dims.collect();
        }
        for input in std::mem::take(&mut proto.input) {
            self.add_input(&input)?;
        }
        let output_names: Vec<String> = proto
            .output
            .iter()
            .map(|o| o.name.clone().unwrap_or_default())
            .collect();
        self.import_nodes(proto.node, "", &output_names)?;
        for name in output_names {
            let id = self.lookup(&name).ok_or_else(|| {
                OnnxError::Malformed(format!("output `{name}` is a value that nothing makes"))
            })?;
            self.graph.outputs.push((name, id));
        }

        self.state()
    }

    fn add_initializers(&mut self, proto: &mut GraphProto) -> Result<(), OnnxError> {
        for tensor in std::mem::take(&mut proto.initializer) {
            let name = tensor.name.clone().unwrap_or_default();
            let (ty, data) = proto::tensor(&name, &tensor, &mut self.files)?;
            let id = self.graph.constant(&name, ty, data);
            self.define(&name, id)?;
        }
        Ok(())
    }

    fn define(&mut self, name: &str, id: ValueId) -> Result<(), OnnxError> {
        let Some(scope) = self.scopes.last_mut() else {
            return Ok(());
        };
        // ONNX is in static single assignment form: a value has one producer within a graph.
        if scope.insert(name.to_owned(), id).is_some() {
            return Err(OnnxError::Malformed(format!(
                "value `{name}` is made twice"
            )));
        }
        Ok(())
    }

    fn lookup(&self, name: &str) -> Option<ValueId> {
        self.scopes.iter().rev().find_map(|s| s.get(name)).copied()
    }

    fn add_input(&mut self, info: &ValueInfoProto) -> Result<(), OnnxError> {
        let name = info.name.clone().unwrap_or_default();
        // Old models list their weights among the inputs.
        if self.lookup(&name).is_some() {
            return Ok(());
        }
        let tensor_type = info.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
        let tensor_type = tensor_type.ok_or_else(|| OnnxError::Type {
            value: name.clone(),
            found: "sequence, map or optional value".to_owned(),
        })?;
        let dtype = proto::dtype_of(&name, tensor_type.elem_type)?;

        // An input that is set needs no shape of its own, so open dimensions are not refused here.
        if let Some((key, value)) = self.options.set.get_key_value(&name) {
            self.set.push(key.clone());
            let declared =
                self.declared_shape(&name, tensor_type.shape.as_ref().map(|s| s.dim.as_slice()))?;
            let (ty, data) = set_value(&name, dtype, declared, value)?;
            let id = self.graph.constant(&name, ty, data);
            return self.define(&name, id);
        }

        let Some(shape) = &tensor_type.shape else {
            return Err(OnnxError::Type {
                value: name,
                found: "tensor without a shape".to_owned(),
            });
        };

        let mut dims = Vec::new();
        for (index, dim) in shape.dim.iter().enumerate() {
            dims.push(self.stream_size(&name, index, dim)?);
        }
        let ty = proto::token(&name, dtype, &dims)?;

        // A token cannot be empty; a tensor without elements has but one value anyway.
        if ty.elements() == 0 {
            let id = self.graph.constant(&name, ty, Bytes::new());
            return self.define(&name, id);
        }

        let input_index = self.graph.inputs.len();
        let id = self.graph.value(&name, ty, Origin::Input(input_index));
        self.graph.inputs.push(id);
        self.define(&name, id)
    }

    /// The shape that an input declares, where all of it is known.
    fn declared_shape(
        &mut self,
        input: &str,
        dims: Option<&[Dimension]>,
    ) -> Result<Option<Vec<i64>>, OnnxError> {
        let Some(dims) = dims else { return Ok(None) };
        let mut sizes = Vec::new();
        for (index, dim) in dims.iter().enumerate() {
            match self.dimension_size(input, index, dim.dim_value, dim.dim_param.as_deref()) {
                Ok(size) => sizes.push(size),
                Err(_) => return Ok(None),
            }
        }

        Ok(Some(sizes))
    }

    /// The name that the first dimension of an input shares with others, if the input is a stream.
    fn batch_name(&self, input: &ValueInfoProto) -> Option<String> {
        let is_set = |name: &String| self.options.set.contains_key(name);
        if input.name.as_ref().is_some_and(is_set) {
            return None;
        }
        let tensor_type = input.r#type.as_ref()?.tensor_type.as_ref()?;
        let first = tensor_type.shape.as_ref()?.dim.first()?;
        first.dim_param.clone().filter(|name| !name.is_empty())
    }

    /// The size of a dimension of an input that is a stream.
    fn stream_size(
        &mut self,
        input: &str,
        index: usize,
        dim: &Dimension,
    ) -> Result<i64, OnnxError> {
        let param = dim.dim_param.as_deref();
        let has_name = param.is_some_and(|name| !name.is_empty());
        let may_be_batch = index == 0 && !has_name && dim.dim_value.is_none_or(|size| size == 1);
        let own_name = format!("{input}.{index}");
        match self.options.batch {
            Some(batch) if may_be_batch && !self.options.dims.contains_key(&own_name) => {
                Ok(i64::from(batch))
            }
            _ => self.dimension_size(input, index, dim.dim_value, param),
        }
    }

    fn dimension_size(
        &mut self,
        input: &str,
        index: usize,
        value: Option<i64>,
        param: Option<&str>,
    ) -> Result<i64, OnnxError> {
        let own_name = format!("{input}.{index}");
        let shared_name = param.filter(|p| !p.is_empty());

        // The name of one dimension goes before a name that several inputs share.
        for key in [Some(own_name.as_str()), shared_name].into_iter().flatten() {
            if let Some(size) = self.options.dims.get(key) {
                self.dims.push(key.to_owned());
                return Ok(i64::from(*size));
            }
        }

        if let (Some(batch), Some(name)) = (self.options.batch, shared_name)
            && self.batch_names.contains(name)
        {
            return Ok(i64::from(batch));
        }

        // A dimension with a name is open even if the file states a size beside it.
        match (value, shared_name) {
            (Some(size), None) => Ok(size),
            _ => Err(OnnxError::Dimension {
                input: input.to_owned(),
                index,
                name: shared_name.unwrap_or(&own_name).to_owned(),
            }),
        }
    }

    /// Where the file's own shape of a `Reshape` is that of one sample, makes it that of the batch: its first dimension is 1, and the
    /// operand in a batch of one is the present one but for 1 in the place of the batch, so that samples are one behind the other.
    pub(super) fn reshape_batch(&mut self, work: &mut Work) {
        let Some(batch) = self.options.batch else {
            return;
        };
        let [Some(operand), Some(target), ..] = work.inputs[..] else {
            return;
        };
        let shape = &self.graph.values[operand].ty.shape;
        if batch == 1 {
            self.reshaped.insert(work.name.clone(), shape.clone());
            return;
        }
        let is_of_batch = self.reshaped.get(&work.name).is_some_and(|single| {
            let (sizes, single_sizes) = (shape.split_first(), single.split_first());
            sizes
                .zip(single_sizes)
                .is_some_and(|((first, rest), (single_first, single_rest))| {
                    (*first, *single_first) == (batch, 1) && rest == single_rest
                })
        });
        let target_type = self.graph.values[target].ty.clone();
        let Some(target_bytes) = self.graph.data(target) else {
            return;
        };
        if is_of_batch && target_bytes.starts_with(&1_i64.to_le_bytes()) {
            let mut of_batch = target_bytes.to_vec();
            of_batch[..size_of::<i64>()].copy_from_slice(&i64::from(batch).to_le_bytes());
            let of_batch = self.graph.constant("", target_type, Bytes::from(of_batch));
            work.inputs[1] = Some(of_batch);
        }
    }

    /// All nodes of a graph, each when its operands are there.
    fn import_nodes(
        &mut self,
        nodes: Vec<NodeProto>,
        prefix: &str,
        outputs: &[String],
    ) -> Result<(), OnnxError> {
        let used_values = used_names(&nodes, outputs);
        let NodeOrder {
            mut waiting_for,
            readers_of,
        } = self.node_order(&nodes)?;

        // Nodes that wait for nothing are imported, which may leave their readers waiting for nothing.
        let mut ready_nodes: VecDeque<usize> =
            (0..nodes.len()).filter(|&i| waiting_for[i] == 0).collect();
        let node_names: Vec<String> = nodes.iter().map(node_name).collect();
        let mut pending_nodes: Vec<Option<NodeProto>> = nodes.into_iter().map(Some).collect();
        while let Some(i) = ready_nodes.pop_front() {
            let Some(node) = pending_nodes[i].take() else {
                continue;
            };
            self.import_node(node, prefix, &used_values)?;

            // Nodes are ordered here, because not all exporters keep to the order that ONNX asks for: O(nodes + reads).
            for &reader in &readers_of[i] {
                waiting_for[reader] -= 1;
                if waiting_for[reader] == 0 {
                    ready_nodes.push_back(reader);
                }
            }
        }

        // A message names a few of them: all may be most of the model.
        let unfinished: Vec<String> = pending_nodes
            .iter()
            .zip(&node_names)
            .filter(|(node, _)| node.is_some())
            .map(|(_, name)| format!("`{name}`"))
            .take(5)
            .collect();
        if unfinished.is_empty() {
            return Ok(());
        }
        Err(OnnxError::Malformed(format!(
            "nodes wait for each other in a circle: {}",
            unfinished.join(", ")
        )))
    }

    /// Who waits for whom: a node for as many values as other nodes make for it.
    fn node_order(&self, nodes: &[NodeProto]) -> Result<NodeOrder, OnnxError> {
        let maker_of: BTreeMap<&str, usize> = nodes
            .iter()
            .enumerate()
            .flat_map(|(i, node)| node.output.iter().map(move |output| (output.as_str(), i)))
            .filter(|(name, _)| !name.is_empty())
            .collect();

        let mut order = NodeOrder {
            waiting_for: vec![0; nodes.len()],
            readers_of: vec![Vec::new(); nodes.len()],
        };
        for (i, node) in nodes.iter().enumerate() {
            let mut read_names = Vec::new();
            collect_reads(node, &mut read_names, 0);
            read_names.sort_unstable();
            read_names.dedup();
            for name in read_names {
                match maker_of.get(name) {
                    Some(&maker) => {
                        order.waiting_for[i] += 1;
                        order.readers_of[maker].push(i);
                    }
                    // What branches read within themselves is found when they are taken.
                    None if self.lookup(name).is_none() && node.input.iter().any(|n| n == name) => {
                        return Err(OnnxError::Malformed(format!(
                            "node `{}` reads `{name}`, which nothing makes",
                            node_name(node)
                        )));
                    }
                    None => {}
                }
            }
        }
        Ok(order)
    }

    fn unique_name(&mut self, name: String) -> String {
        let count = self.names.entry(name.clone()).or_insert(0);
        *count += 1;
        if *count == 1 {
            name
        } else {
            format!("{name}#{count}")
        }
    }

    fn import_node(
        &mut self,
        mut proto: NodeProto,
        prefix: &str,
        used: &BTreeMap<String, ()>,
    ) -> Result<(), OnnxError> {
        // What nothing reads need not have an op either.
        if !proto.output.iter().any(|o| used.contains_key(o)) {
            return Ok(());
        }

        let operator = proto.op_type.clone().unwrap_or_default();
        let name = self.unique_name(format!("{prefix}{}", node_name(&proto)));
        let domain = proto.domain.as_deref();
        let is_contrib =
            domain == Some(contrib::DOMAIN) && contrib::OPERATORS.contains(&operator.as_str());
        let is_known = is_contrib || is_default_domain(domain);
        if let Some(domain) = domain.filter(|_| !is_known) {
            return Err(OnnxError::Operator {
                node: name,
                operator: format!("{domain}:{operator}"),
                why: "only operators of the ONNX domain are known, and some of com.microsoft for quantised models"
                    .to_owned(),
                help: "export with standard operators, or with functions written out".to_owned(),
            });
        }

        let mut inputs = Vec::new();
        for input in &proto.input {
            inputs.push(match input.as_str() {
                "" => None,
                given => Some(self.lookup(given).ok_or_else(|| {
                    OnnxError::Malformed(format!(
                        "node `{name}` reads `{given}`, which nothing makes"
                    ))
                })?),
            });
        }

        let named_attributes: Attributes = std::mem::take(&mut proto.attribute)
            .into_iter()
            .map(|a| (a.name.clone().unwrap_or_default(), a))
            .collect();
        // An output that nobody reads has no name, as ONNX writes those that are left out.
        let mut outputs = proto.output;
        for output in &mut outputs {
            if !used.contains_key(output) {
                output.clear();
            }
        }
        let mut work = Work {
            name,
            operator,
            inputs,
            attributes: named_attributes,
            outputs,
        };

        if operator_is_branch(&work.operator) {
            return self.import_branch(work);
        }
        let values = if is_contrib {
            contrib::lower(self, &mut work)?
        } else {
            match normalise::lower_special(self, &mut work)? {
                Some(values) => values,
                None => self.lower(&mut work)?,
            }
        };

        // A value that was made without a name, such as a view, gets that of the output.
        for (output, value) in work.outputs.iter().zip(values) {
            if let (false, Some(id)) = (output.is_empty(), value) {
                if self.graph.values[id].name.is_empty() {
                    self.graph.values[id].name.clone_from(output);
                }
                self.define(output, id)?;
            }
        }
        Ok(())
    }

    /// Takes the branch of an `If` whose condition is constant.
    fn import_branch(&mut self, mut work: Work) -> Result<(), OnnxError> {
        let condition_id = work.inputs.first().copied().flatten();
        let condition_value = condition_id
            .and_then(|id| self.graph.data(id))
            .map(|data| data.iter().any(|&b| b != 0));
        let Some(condition_value) = condition_value else {
            return Err(self.not_constant(&work, condition_id.unwrap_or(0)));
        };
        let branch_name = if condition_value {
            "then_branch"
        } else {
            "else_branch"
        };
        let mut branch_graph = work
            .attributes
            .remove(branch_name)
            .and_then(|a| a.g)
            .ok_or_else(|| {
                OnnxError::Malformed(format!("`If` node `{}` has no `{branch_name}`", work.name))
            })?;
        let outputs: Vec<String> = branch_graph
            .output
            .iter()
            .map(|o| o.name.clone().unwrap_or_default())
            .collect();

        // Names of the branch hide those around it, and are gone behind it.
        self.scopes.push(BTreeMap::new());
        let node_prefix = format!("{}/", work.name);
        let branch_result = self
            .add_initializers(&mut branch_graph)
            .and_then(|()| self.import_nodes(branch_graph.node, &node_prefix, &outputs));
        let branch_values: Vec<Option<ValueId>> = outputs.iter().map(|o| self.lookup(o)).collect();
        self.scopes.pop();
        branch_result?;
        for (i, (output, id)) in work.outputs.iter().zip(branch_values).enumerate() {
            if output.is_empty() {
                continue;
            }
            let id = id.ok_or_else(|| {
                OnnxError::Malformed(format!(
                    "branch of `{}` does not make output {i}",
                    work.name
                ))
            })?;
            self.define(output, id)?;
        }
        Ok(())
    }

    pub(super) fn not_constant(&self, work: &Work, id: ValueId) -> OnnxError {
        let mut root = self.graph.root(id);

        // Walks back to an input, which can be `set`: better advice than the name of a value in between. Only a few
        // steps, since far away the link is not obvious to the reader either.
        for _ in 0..8 {
            let Origin::Node(node, _) = self.graph.values[root].origin else {
                break;
            };
            let Some(next) = self.graph.nodes[node]
                .inputs
                .iter()
                .flatten()
                .find(|&&i| self.graph.data(i).is_none())
            else {
                break;
            };
            root = self.graph.root(*next);
        }

        let value = &self.graph.values[root];
        OnnxError::NotConstant {
            node: work.name.clone(),
            operator: work.operator.clone(),
            value: value.name.clone(),
            input: matches!(value.origin, Origin::Input(_)),
        }
    }

    /// A node as a tensor op: its outputs by position.
    pub(super) fn lower(&mut self, work: &mut Work) -> Result<Vec<Option<ValueId>>, OnnxError> {
        // Only passes make operators that ONNX does not have; no file may name one.
        let op = TensorOp::find(&work.operator).filter(|o| !is_internal(o.operator));
        let Some(op) = op else {
            return Err(normalise::unknown(work));
        };

        // Optional operands at the end may be written as empty names or left out: the same to the op.
        // Optional inputs at the end may be left out or be named by an empty string: one form from here on.
        while work.inputs.last() == Some(&None) {
            work.inputs.pop();
        }

        let mut params = self.params(op, work)?;
        let wanted: Vec<usize> = (0..work.outputs.len())
            .filter(|&o| !work.outputs[o].is_empty())
            .collect();

        // The first output alone is the default of every op.
        if wanted != [0] {
            params.insert(
                "outputs".to_owned(),
                Value::List(wanted.iter().map(|&o| Value::Int(o as i64)).collect()),
            );
        }

        self.check_inputs(op, work)?;
        let signature = self
            .resolve(op, &params, &work.inputs)
            .map_err(|e| self.op_error(work, e))?;
        let types: Vec<TokenType> = signature.outputs.iter().map(|p| p.token.clone()).collect();

        // Without a port all operands are constant, and so is the result.
        // All inputs are constants: the op is computed now and not once an iteration. Weights stay quantised for now: a
        // pass looks for their bytes, and what is left is computed then.
        if signature.inputs.is_empty()
            && op.operator != "DequantizeLinear"
            && let Some(ids) = self.fold(work, op, &params, signature)?
        {
            return Ok(spread(work.outputs.len(), &wanted, ids));
        }

        let ids = self.add_node(op, params, work, wanted.iter().copied().zip(types));
        Ok(spread(work.outputs.len(), &wanted, ids))
    }

    /// The operator takes this many inputs, and those that its shape depends on are known.
    fn check_inputs(&self, op: &TensorOp, work: &Work) -> Result<(), OnnxError> {
        for (position, id) in work.inputs.iter().enumerate() {
            let Some((input, _)) = op.input(position) else {
                return Err(self.refused(
                    work,
                    format!("has {} inputs", work.inputs.len()),
                    "fewer inputs".to_owned(),
                ));
            };

            if let Some(id) = *id
                && input.constant
                && self.graph.data(id).is_none()
            {
                return Err(self.not_constant(work, id));
            }
        }
        Ok(())
    }

    /// Adds a node, and a value for each of its outputs (position and type).
    fn add_node(
        &mut self,
        op: &'static TensorOp,
        params: Params,
        work: &Work,
        wanted: impl Iterator<Item = (usize, TokenType)>,
    ) -> Vec<ValueId> {
        let node_index = self.graph.nodes.len();
        let mut outputs = Vec::new();
        for (position, token_type) in wanted {
            let name = &work.outputs[position];
            // Nothing flows where there are no elements.
            let id = if token_type.elements() == 0 {
                self.graph.constant(name, token_type, Bytes::new())
            } else {
                let origin = Origin::Node(node_index, position);
                self.graph.value(name, token_type, origin)
            };
            outputs.push((position, id));
        }

        let ids = outputs.iter().map(|&(_, id)| id).collect();
        self.graph.nodes.push(Node {
            name: work.name.clone(),
            op,
            params,
            inputs: work.inputs.clone(),
            outputs,
            dead: false,
        });
        ids
    }

    fn refused(&self, work: &Work, why: String, help: String) -> OnnxError {
        OnnxError::Refused {
            node: work.name.clone(),
            operator: work.operator.clone(),
            why,
            help,
        }
    }

    fn op_error(&self, work: &Work, error: OpError) -> OnnxError {
        let help = match &error {
            OpError::NeedInput { .. } => String::new(),
            OpError::Param { help, .. }
            | OpError::Input { help, .. }
            | OpError::Other { help, .. } => help.clone(),
        };
        self.refused(work, error.to_string(), help)
    }

    /// Asks the op what it makes of operands and parameters.
    fn resolve(
        &self,
        op: &'static TensorOp,
        params: &Params,
        inputs: &[Option<ValueId>],
    ) -> Result<Signature, OpError> {
        resolve(&self.graph, self.registry, op, params, inputs)
    }

    /// Computes a node all of whose operands are constant, unless the result would be too large.
    fn fold(
        &mut self,
        work: &Work,
        op: &'static TensorOp,
        params: &Params,
        signature: Signature,
    ) -> Result<Option<Vec<ValueId>>, OnnxError> {
        let result_bytes: u64 = signature
            .outputs
            .iter()
            .map(|p| p.token.bytes())
            .fold(0, u64::saturating_add);
        let operand_bytes: u64 = work
            .inputs
            .iter()
            .flatten()
            .map(|&i| self.graph.values[i].ty.bytes())
            .fold(0, u64::saturating_add);
        if result_bytes > MAX_FOLDED.max(operand_bytes.saturating_mul(4)) {
            return Ok(None);
        }

        // The kernel that would run computes the constant, so that folding changes no bit of the result.
        let types: Vec<TokenType> = signature.outputs.iter().map(|p| p.token.clone()).collect();
        let computed = compute(
            &self.graph,
            self.registry,
            op,
            params,
            &work.inputs,
            signature,
        );

        let data = computed.map_err(|e| self.op_error(work, e))?;
        let wanted = (0..work.outputs.len()).filter(|&o| !work.outputs[o].is_empty());
        let ids = wanted.zip(types.into_iter().zip(data));
        Ok(Some(
            ids.map(|(o, (ty, data))| self.graph.constant(&work.outputs[o], ty, data))
                .collect(),
        ))
    }

    /// Parameters from attributes.
    fn params(&self, op: &'static TensorOp, work: &Work) -> Result<Params, OnnxError> {
        let mut params = Params::new();
        for (name, attribute) in &work.attributes {
            if !op.params.contains(&name.as_str()) {
                if normalise::IGNORED.contains(&name.as_str()) {
                    continue;
                }
                let help = format!("known are {}", op.params.join(", "));
                return Err(self.refused(work, format!("attribute `{name}` is not known"), help));
            }

            // Attributes for element types hold ONNX's code; ops take the name. Code 0 means that none is given.
            if matches!(name.as_str(), "to" | "dtype" | "output_dtype") {
                let code = attribute.i.unwrap_or(0) as i32;
                if code == 0 && name == "output_dtype" {
                    continue;
                }
                let dtype = proto::dtype_of(
                    &format!("{name} of {}", work.name),
                    Some(rten_onnx::onnx::DataType(code)),
                )?;
                params.insert(name.clone(), Value::Str(dtype.name().to_owned()));
                continue;
            }

            if let Some(value) = attribute_value(attribute) {
                params.insert(name.clone(), value);
            }
        }

        Ok(params)
    }

    /// Closes outputs as state.
    fn state(&mut self) -> Result<(), OnnxError> {
        for (input, output) in &self.options.state {
            let place = self
                .graph
                .inputs
                .iter()
                .position(|&i| self.graph.values[i].name == *input);
            let place = place.ok_or_else(|| {
                OnnxError::Option(format!("there is no input `{input}` to be closed as state"))
            })?;
            let id = self
                .graph
                .outputs
                .iter()
                .find(|(name, _)| name == output)
                .map(|o| o.1);
            let id = id.ok_or_else(|| {
                OnnxError::Option(format!(
                    "there is no output `{output}` to be closed as state"
                ))
            })?;

            // The token that comes back is the next one that is read: same dtype, same shape.
            let output_type = &self.graph.values[id].ty;
            let input_type = &self.graph.values[self.graph.inputs[place]].ty;
            if output_type != input_type {
                return Err(OnnxError::State {
                    output: output.clone(),
                    from: output_type.clone(),
                    input: input.clone(),
                    to: input_type.clone(),
                });
            }

            self.graph.state.push((place, id));
        }

        // A closed output is not the model's any more.
        let closed: Vec<&String> = self.options.state.values().collect();
        self.graph
            .outputs
            .retain(|(name, _)| !closed.contains(&name));
        Ok(())
    }

    fn check_options(&self) -> Result<(), OnnxError> {
        if let Some(name) = self.options.set.keys().find(|k| !self.set.contains(k)) {
            return Err(OnnxError::Option(format!(
                "there is no input `{name}` to be set"
            )));
        }

        if let Some(name) = self.options.dims.keys().find(|k| !self.dims.contains(k)) {
            return Err(OnnxError::Option(format!(
                "no input has a dimension `{name}`"
            )));
        }

        // Empty values may exist within a model, but an output would be a stream of them.
        for (name, id) in &self.graph.outputs {
            let ty = &self.graph.values[*id].ty;
            if ty.elements() == 0 {
                return Err(OnnxError::Type {
                    value: name.clone(),
                    found: format!("{ty}, which is empty: no token is"),
                });
            }
        }
        Ok(())
    }

    /// Whether the model's streams have samples as their first dimension, where a number of them is computed together.
    fn check_batch(&mut self) -> Result<(), OnnxError> {
        let Some(batch) = self.options.batch else {
            return Ok(());
        };
        if let Some(input) = self.options.state.keys().next() {
            return Err(OnnxError::Option(format!(
                "a batch is samples that do not depend on each other, but `{input}` is closed as state"
            )));
        }

        let inputs = self.graph.inputs.iter();
        let inputs = inputs.map(|&id| ("input", self.graph.values[id].name.as_str(), id));
        let outputs = self.graph.outputs.iter();
        let outputs = outputs.map(|(name, id)| ("output", name.as_str(), *id));
        for (what, name, id) in inputs.chain(outputs) {
            let ty = &self.graph.values[id].ty;
            if ty.shape.first() != Some(&batch) {
                return Err(OnnxError::Option(format!(
                    "{what} `{name}` is {ty} in a batch of {batch}: its first dimension is not the batch"
                )));
            }
        }
        self.graph.batch = Some(batch);
        Ok(())
    }
}

/// In which order the nodes of a graph can be imported.
struct NodeOrder {
    /// Number of values by node that other nodes have yet to make for it.
    waiting_for: Vec<usize>,
    /// Nodes by node that read what it makes.
    readers_of: Vec<Vec<usize>>,
}

/// A node being imported.
pub(super) struct Work {
    pub(super) name: String,
    pub(super) operator: String,
    pub(super) inputs: Vec<Option<ValueId>>,
    pub(super) attributes: Attributes,
    /// Names of outputs; empty where nobody reads them.
    pub(super) outputs: Vec<String>,
}

/// Whether an operator is one that passes put in the place of ONNX's.
fn is_internal(operator: &str) -> bool {
    operator.ends_with("ChannelsLast") || operator == "ByteLookup"
}

fn operator_is_branch(operator: &str) -> bool {
    operator == "If"
}

fn node_name(node: &NodeProto) -> String {
    let own = node.name.as_deref().filter(|n| !n.is_empty());
    own.or(node
        .output
        .iter()
        .find(|o| !o.is_empty())
        .map(String::as_str))
        .unwrap_or("node")
        .to_owned()
}

/// Everything that nodes or outputs of a graph read, branches included.
fn used_names(nodes: &[NodeProto], outputs: &[String]) -> BTreeMap<String, ()> {
    let mut names = Vec::new();
    nodes.iter().for_each(|n| collect_reads(n, &mut names, 0));
    names
        .into_iter()
        .chain(outputs.iter().map(String::as_str))
        .filter(|n| !n.is_empty())
        .map(|n| (n.to_owned(), ()))
        .collect()
}

/// Names that a node reads, and those that its branches do, wherever they are made.
fn collect_reads<'n>(node: &'n NodeProto, names: &mut Vec<&'n str>, depth: usize) {
    names.extend(
        node.input
            .iter()
            .map(String::as_str)
            .filter(|n| !n.is_empty()),
    );

    // The scan has refused files nested deeper than this: the limit only guards the stack.
    if depth > 64 {
        return;
    }
    for graph in node.attribute.iter().filter_map(|a| a.g.as_ref()) {
        graph
            .node
            .iter()
            .for_each(|n| collect_reads(n, names, depth + 1));
        names.extend(graph.output.iter().filter_map(|o| o.name.as_deref()));
    }
}

/// Values of the wanted outputs among all `outputs` of a node.
fn spread(outputs: usize, wanted: &[usize], ids: Vec<ValueId>) -> Vec<Option<ValueId>> {
    let mut by_position = vec![None; outputs];
    for (&position, id) in wanted.iter().zip(ids) {
        by_position[position] = Some(id);
    }
    by_position
}

fn attribute_value(a: &AttributeProto) -> Option<Value> {
    // Old files do not say which type an attribute has: it is the field that is filled.
    if !a.ints.is_empty() {
        let ints = a.ints.iter().map(|&int| Value::Int(int));
        return Some(Value::List(ints.collect()));
    }
    if !a.floats.is_empty() {
        let floats = a.floats.iter().map(|&float| f64::from(float));
        return Some(Value::List(floats.map(Value::Float).collect()));
    }
    if !a.strings.is_empty() {
        let strings = a.strings.iter().cloned();
        return Some(Value::List(strings.map(Value::Str).collect()));
    }

    a.s.clone()
        .map(Value::Str)
        .or(a.f.map(|f| Value::Float(f64::from(f))))
        .or(a.i.map(Value::Int))
}

/// The value that options give to an input.
fn set_value(
    name: &str,
    dtype: DType,
    declared: Option<Vec<i64>>,
    value: &SetValue,
) -> Result<(TokenType, Bytes), OnnxError> {
    match value {
        SetValue::Tensor(ty, data) => {
            let fits = ty.dtype == dtype
                && data.len() as u64 == ty.bytes()
                && ty.shape.len() <= limits::MAX_RANK;
            if !fits {
                return Err(OnnxError::Option(format!(
                    "input `{name}` is a tensor of {dtype}, it is set to {ty}"
                )));
            }

            Ok((ty.clone(), data.clone()))
        }
        SetValue::Numbers(numbers) => {
            let dims = declared.unwrap_or_else(|| vec![numbers.len() as i64]);
            let ty = proto::token(name, dtype, &dims)?;

            // One number fills the tensor, as `set: {"gain": 1}` is meant.
            let numbers = match numbers.as_slice() {
                [one] => vec![*one; ty.elements() as usize],
                many => many.to_vec(),
            };
            if numbers.len() as u64 != ty.elements() {
                return Err(OnnxError::Option(format!(
                    "input `{name}` is {ty}, {} numbers are given",
                    numbers.len()
                )));
            }

            let data = normalise::encode(dtype, &numbers);
            Ok((ty, Bytes::from(data)))
        }
    }
}
