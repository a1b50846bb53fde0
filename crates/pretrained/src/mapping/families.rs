//! The names of each family.

use super::{Entry, How};
use crate::{Architecture, Family, Features, Head, NormKind, Position};

/// The parameters of an architecture.
pub(super) fn entries(architecture: &Architecture, present: &dyn Fn(&str) -> bool) -> Vec<Entry> {
    let mut table = Table::new(architecture, present);
    match architecture.family {
        Family::Bert | Family::Roberta | Family::Albert => bert(&mut table),
        Family::Gpt2 => gpt2(&mut table),
        Family::Llama => llama(&mut table),
        Family::Vit | Family::Dinov2 => image(&mut table),
    }
    table.entries
}

/// Whether a tensor that is no parameter may be left out.
pub(super) fn ignorable(architecture: &Architecture, name: &str) -> bool {
    let family = architecture.family;
    let bare = name.strip_prefix(family.prefix()).unwrap_or(name);
    match family {
        Family::Bert | Family::Roberta | Family::Albert => {
            // Numbers of rows, and what was learned besides the hidden tokens: whether sentences follow each other.
            matches!(bare, "embeddings.position_ids" | "embeddings.token_type_ids")
                || (!matches!(architecture.head, Head::None) && !architecture.pooler && bare.starts_with("pooler."))
                || (matches!(architecture.head, Head::Masked { .. })
                    && (bare.starts_with("cls.seq_relationship.") || bare.starts_with("sop_classifier.")))
        }
        // The triangle of causality, and what is put where it hides.
        Family::Gpt2 => bare.ends_with(".attn.bias") || bare.ends_with(".attn.masked_bias"),
        Family::Llama => bare.ends_with(".rotary_emb.inv_freq"),
        // What stood for hidden patches.
        Family::Vit | Family::Dinov2 => bare == "embeddings.mask_token",
    }
}

/// Entries so far.
struct Table<'a> {
    architecture: &'a Architecture,
    present: &'a dyn Fn(&str) -> bool,
    prefix: &'static str,
    entries: Vec<Entry>,
}

impl<'a> Table<'a> {
    fn new(architecture: &'a Architecture, present: &'a dyn Fn(&str) -> bool) -> Self {
        let prefix = architecture.family.prefix();
        let first = match architecture.family {
            Family::Bert | Family::Roberta | Family::Albert => "embeddings.word_embeddings.weight",
            Family::Gpt2 => "wte.weight",
            Family::Llama => "embed_tokens.weight",
            Family::Vit | Family::Dinov2 => "embeddings.cls_token",
        };
        let prefixed =
            present(&format!("{prefix}{first}")) || (!present(first) && !matches!(architecture.head, Head::None));
        Self { architecture, present, prefix: if prefixed { prefix } else { "" }, entries: Vec::new() }
    }

    /// The name of a tensor of the base model.
    fn base(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn push(&mut self, name: &str, shape: &[usize], source: String, source_shape: &[usize], how: How) -> &mut Entry {
        let (name, shape, source_shape) = (name.to_string(), shape.to_vec(), source_shape.to_vec());
        self.entries.push(Entry { name, shape, source, source_shape, how, copies: Vec::new() });
        self.entries.last_mut().expect("it was just added")
    }

    /// A tensor of the same shape.
    fn same(&mut self, name: &str, shape: &[usize], source: String) -> &mut Entry {
        self.push(name, shape, source, shape, How::AsIs)
    }

    /// A parameter that may lie under the names of `copies` too, or only there.
    fn copied(&mut self, name: &str, shape: &[usize], source: String, copies: &[&str]) {
        let mut names: Vec<String> = copies.iter().map(|name| name.to_string()).collect();
        names.insert(0, source);
        let at = names.iter().position(|name| (self.present)(name)).unwrap_or(0);
        let source = names.remove(at);
        self.same(name, shape, source).copies = names;
    }

    /// A linear map `from`, whose weight lies as `[out, in]`.
    fn linear(&mut self, weight: &str, bias: &str, from: &str, [input, output]: [usize; 2], with_bias: bool) {
        let (shape, source_shape) = ([input, output], [output, input]);
        self.push(weight, &shape, format!("{from}.weight"), &source_shape, How::Transposed);
        if with_bias {
            self.same(bias, &[output], format!("{from}.bias"));
        }
    }

    /// A norm, whose tensors older files call `gamma` and `beta`.
    fn norm(&mut self, name: &str, from: &str, width: usize) {
        let parts: &[_] = match self.architecture.norm.kind {
            NormKind::Layer => &[("weight", "gamma"), ("bias", "beta")],
            NormKind::Rms => &[("weight", "gamma")],
        };
        for (part, older) in parts {
            let (new, old) = (format!("{from}.{part}"), format!("{from}.{older}"));
            let source = if !(self.present)(&new) && (self.present)(&old) { old } else { new };
            self.same(&format!("{name}.{part}"), &[width], source);
        }
    }

    /// Queries, keys, values and output of a layer, by the names of their maps.
    fn attention(&mut self, layer: &str, from: [String; 4]) {
        let a = self.architecture;
        let (query, key) = (a.query_width(), a.key_width());
        let sizes = [[a.width, query], [a.width, key], [a.width, key], [query, a.width]];
        for (i, (letter, from)) in "qkvo".chars().zip(from).enumerate() {
            let bias = if i < 3 { a.biases.query_key_value } else { a.biases.out };
            let (weight, offset) = (format!("{layer}.attention.w_{letter}"), format!("{layer}.attention.b_{letter}"));
            self.linear(&weight, &offset, &from, sizes[i], bias);
        }
    }

    /// A map of the feed-forward part of a layer: `1`, `2` or `gate`.
    fn feed_forward(&mut self, layer: &str, part: &str, from: String) {
        let a = self.architecture;
        let sizes = if part == "2" { [a.feed_forward, a.width] } else { [a.width, a.feed_forward] };
        let (weight, bias) = (format!("{layer}.ff.w_{part}"), format!("{layer}.ff.b_{part}"));
        self.linear(&weight, &bias, &from, sizes, a.biases.feed_forward);
    }

    /// The head of a language model of the name `from`, unless it is tied to the table of tokens.
    fn head(&mut self, from: &str, width: usize, bias: bool) {
        if !self.architecture.tied() {
            self.linear("head", "b_head", from, [width, self.architecture.vocabulary], bias);
        }
    }

    /// The scores of classes.
    fn classifier(&mut self, from: &str) {
        if let Head::Classifier { classes, features, bias } = self.architecture.head {
            let times = if features == Features::FirstAndMean { 2 } else { 1 };
            self.linear("head", "b_head", from, [times * self.architecture.width, classes], bias);
        }
    }

    /// The table of tokens, which a tied head may repeat.
    fn tokens(&mut self, source: &str, head: &str) {
        let shape = [self.architecture.vocabulary, self.architecture.embedding_width];
        let copies: &[&str] = if self.architecture.tied() { &[head] } else { &[] };
        self.copied("token_embedding", &shape, self.base(source), copies);
    }

    fn positions(&mut self, source: &str) {
        if let Position::Learned { rows, .. } = self.architecture.position {
            let width = self.architecture.embedding_width;
            self.same("position_embedding", &[rows, width], self.base(source));
        }
    }
}

fn bert(table: &mut Table<'_>) {
    let a = table.architecture;
    let family = a.family;
    let (e, d) = (a.embedding_width, a.width);
    let decoder = match family {
        Family::Roberta => "lm_head.decoder",
        Family::Albert => "predictions.decoder",
        _ => "cls.predictions.decoder",
    };
    table.tokens("embeddings.word_embeddings.weight", &format!("{decoder}.weight"));
    table.same("token_type_embedding", &[a.token_types, e], table.base("embeddings.token_type_embeddings.weight"));
    table.positions("embeddings.position_embeddings.weight");
    table.norm("norm_embedding", &table.base("embeddings.LayerNorm"), e);
    if a.embedding_projection {
        table.linear("w_embedding", "b_embedding", &table.base("encoder.embedding_hidden_mapping_in"), [e, d], true);
    }
    for i in 0..a.own_layers() {
        let layer = format!("layers.{i}");
        if family == Family::Albert {
            let from = table.base("encoder.albert_layer_groups.0.albert_layers.0");
            table.attention(&layer, ["query", "key", "value", "dense"].map(|part| format!("{from}.attention.{part}")));
            table.norm(&format!("{layer}.norm_1"), &format!("{from}.attention.LayerNorm"), d);
            table.feed_forward(&layer, "1", format!("{from}.ffn"));
            table.feed_forward(&layer, "2", format!("{from}.ffn_output"));
            table.norm(&format!("{layer}.norm_2"), &format!("{from}.full_layer_layer_norm"), d);
        } else {
            let from = table.base(&format!("encoder.layer.{i}"));
            let parts = ["self.query", "self.key", "self.value", "output.dense"];
            table.attention(&layer, parts.map(|part| format!("{from}.attention.{part}")));
            table.norm(&format!("{layer}.norm_1"), &format!("{from}.attention.output.LayerNorm"), d);
            table.feed_forward(&layer, "1", format!("{from}.intermediate.dense"));
            table.feed_forward(&layer, "2", format!("{from}.output.dense"));
            table.norm(&format!("{layer}.norm_2"), &format!("{from}.output.LayerNorm"), d);
        }
    }
    if a.pooler {
        let from = match (family, a.head) {
            // Its class keeps that map beside the scores.
            (Family::Roberta, Head::Classifier { .. }) => "classifier.dense".into(),
            (Family::Albert, _) => table.base("pooler"),
            _ => table.base("pooler.dense"),
        };
        table.linear("pooler.w", "pooler.b", &from, [d, d], true);
    }
    match a.head {
        Head::Masked { bias, .. } => masked(table, decoder, bias),
        Head::Classifier { .. } if family == Family::Roberta && a.pooler => table.classifier("classifier.out_proj"),
        _ => table.classifier("classifier"),
    }
}

fn masked(table: &mut Table<'_>, decoder: &str, bias: bool) {
    let a = table.architecture;
    let (dense, norm, offset) = match a.family {
        Family::Roberta => ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
        Family::Albert => ("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
        _ => ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
    };
    table.linear("transform.w", "transform.b", dense, [a.width, a.embedding_width], true);
    table.norm("norm_transform", norm, a.embedding_width);
    table.head(decoder, a.embedding_width, false);
    if bias {
        table.copied("b_head", &[a.vocabulary], offset.into(), &[&format!("{decoder}.bias")]);
    }
}

fn gpt2(table: &mut Table<'_>) {
    let a = table.architecture;
    let (d, inner) = (a.width, a.feed_forward);
    table.tokens("wte.weight", "lm_head.weight");
    table.positions("wpe.weight");
    for i in 0..a.own_layers() {
        let (layer, from) = (format!("layers.{i}"), table.base(&format!("h.{i}")));
        table.norm(&format!("{layer}.norm_1"), &format!("{from}.ln_1"), d);
        // Queries, keys and values side by side, as [in, out].
        for (part, letter) in ["q", "k", "v"].iter().enumerate() {
            let (columns, fused) = (part * d..(part + 1) * d, format!("{from}.attn.c_attn"));
            let (weight, bias) = (format!("{layer}.attention.w_{letter}"), format!("{layer}.attention.b_{letter}"));
            table.push(&weight, &[d, d], format!("{fused}.weight"), &[d, 3 * d], How::Columns(columns.clone()));
            table.push(&bias, &[d], format!("{fused}.bias"), &[3 * d], How::Columns(columns));
        }
        let parts = [("attention.w_o", "attention.b_o", "attn.c_proj", [d, d])];
        let inner = [("ff.w_1", "ff.b_1", "mlp.c_fc", [d, inner]), ("ff.w_2", "ff.b_2", "mlp.c_proj", [inner, d])];
        let direct = |table: &mut Table<'_>, (weight, bias, part, sizes): (&str, &str, &str, [usize; 2])| {
            table.same(&format!("{layer}.{weight}"), &sizes, format!("{from}.{part}.weight"));
            table.same(&format!("{layer}.{bias}"), &sizes[1..], format!("{from}.{part}.bias"));
        };
        parts.into_iter().for_each(|part| direct(table, part));
        table.norm(&format!("{layer}.norm_2"), &format!("{from}.ln_2"), d);
        inner.into_iter().for_each(|part| direct(table, part));
    }
    table.norm("norm_f", &table.base("ln_f"), d);
    causal_head(table);
}

fn llama(table: &mut Table<'_>) {
    let a = table.architecture;
    table.tokens("embed_tokens.weight", "lm_head.weight");
    for i in 0..a.own_layers() {
        let (layer, from) = (format!("layers.{i}"), table.base(&format!("layers.{i}")));
        table.norm(&format!("{layer}.norm_1"), &format!("{from}.input_layernorm"), a.width);
        table.attention(&layer, ["q", "k", "v", "o"].map(|part| format!("{from}.self_attn.{part}_proj")));
        table.norm(&format!("{layer}.norm_2"), &format!("{from}.post_attention_layernorm"), a.width);
        table.feed_forward(&layer, "1", format!("{from}.mlp.up_proj"));
        table.feed_forward(&layer, "gate", format!("{from}.mlp.gate_proj"));
        table.feed_forward(&layer, "2", format!("{from}.mlp.down_proj"));
    }
    table.norm("norm_f", &table.base("norm"), a.width);
    causal_head(table);
}

fn causal_head(table: &mut Table<'_>) {
    match table.architecture.head {
        Head::Language { bias, .. } => table.head("lm_head", table.architecture.width, bias),
        _ => table.classifier("score"),
    }
}

fn image(table: &mut Table<'_>) {
    let a = table.architecture;
    let d = a.width;
    if let Some(patch) = a.patch {
        let numbers = patch.channels * patch.patch * patch.patch;
        let (from, side) = (table.base("embeddings.patch_embeddings.projection"), patch.patch);
        let source_shape = [d, patch.channels, side, side];
        table.push("w_patch", &[numbers, d], format!("{from}.weight"), &source_shape, How::Transposed);
        table.same("b_patch", &[d], format!("{from}.bias"));
    }
    table.push("class_token", &[1, d], table.base("embeddings.cls_token"), &[1, 1, d], How::AsIs);
    let source = table.base("embeddings.position_embeddings");
    table.push("position_embedding", &[a.context, d], source, &[1, a.context, d], How::AsIs);
    for i in 0..a.own_layers() {
        let (layer, from) = (format!("layers.{i}"), table.base(&format!("encoder.layer.{i}")));
        let [norm_1, norm_2, up, down] = match a.family {
            Family::Dinov2 => ["norm1", "norm2", "mlp.fc1", "mlp.fc2"],
            _ => ["layernorm_before", "layernorm_after", "intermediate.dense", "output.dense"],
        };
        table.norm(&format!("{layer}.norm_1"), &format!("{from}.{norm_1}"), d);
        let parts = ["attention.query", "attention.key", "attention.value", "output.dense"];
        table.attention(&layer, parts.map(|part| format!("{from}.attention.{part}")));
        if a.layer_scale {
            table.same(&format!("{layer}.scale_1"), &[d], format!("{from}.layer_scale1.lambda1"));
        }
        table.norm(&format!("{layer}.norm_2"), &format!("{from}.{norm_2}"), d);
        table.feed_forward(&layer, "1", format!("{from}.{up}"));
        table.feed_forward(&layer, "2", format!("{from}.{down}"));
        if a.layer_scale {
            table.same(&format!("{layer}.scale_2"), &[d], format!("{from}.layer_scale2.lambda1"));
        }
    }
    table.norm("norm_f", &table.base("layernorm"), d);
    if a.pooler {
        table.linear("pooler.w", "pooler.b", &table.base("pooler.dense"), [d, d], true);
    }
    table.classifier("classifier");
}
