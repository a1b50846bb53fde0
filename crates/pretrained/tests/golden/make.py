#!/usr/bin/env python3
"""Make the tiny models of this folder and what they compute, once; the files are kept in the repository.

    python3 make.py DIR        (needs torch and transformers; made with transformers 5.24, torch 2.15)

For each model NAME: NAME/ is a Hugging Face folder with random weights, as `save_pretrained` writes it, and
NAME.safetensors what the model computes in float64 from the weights as they were stored:

    input_ids, attention_mask, token_type_ids   int64 [B,N], rows padded on the right (text)
    pixel_values                                float64 [B,C,H,W] (images)
    hidden.0 .. hidden.L                        embeddings, then the output of every layer, float64 [B,N,d]
                                                (pre-norm: `hidden.L` is before the final norm)
    last_hidden                                  output of the base model, float64 [B,N,d]
    pooled                                       where the model has a pooler without a head, float64 [B,d]
    logits                                       where it has a head, float64
    generated                                    greedy continuation of the first 4 tokens of row 0, int64 (decoders)

Positions that are padding hold whatever falls out: compare the others.
transformers computes rotary angles, RMS norms and the softmax in float32 whatever the type of the weights; they are replaced here
by the same formulas in float64, which are checked against its own.
`rotary.json` lists scalings of rotary positions with the frequencies of transformers for heads of 16 at base 10000, context 64
(at length 200 for `dynamic`) and the factor of cosine and sine.
`tokens.json` of a folder lists texts and the ids that the Python tokenizers give them; `chat.json` a conversation and its rendering.
"""
import json, os, sys
import torch
import transformers as tf
from safetensors.torch import save_file

OUT = sys.argv[1]
TEXTS = ["Hello, world!", "The cat sat on the mat.", "A café in Zürich: 3.14 € – naïve?", "", "日本 emoji 🙂 end", "don't  stop\nnow"]
SENTENCES = ["the cat sat on the mat and the dog sat on the log", "hello world, this is a test of the small model",
             "once upon a time there was a little girl named lily", "a model of words learns to say the next word"]

# ---- float64 where transformers insists on float32 ----
softmax = torch.nn.functional.softmax
torch.nn.functional.softmax = lambda x, dim=None, dtype=None, **k: softmax(x, dim=dim, **k)


def rms_norm(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


tf.models.llama.modeling_llama.LlamaRMSNorm.forward = rms_norm


def rotary(self, x, position_ids):
    p, width = self.config.rope_parameters, self.config.head_dim
    wave = lambda f: 2 * torch.pi / f
    f = p["rope_theta"] ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    if p["rope_type"] == "llama3":
        low, high, old, factor = (p[k] for k in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "factor"))
        smooth = (old / wave(f) - low) / (high - low)
        f = torch.where(wave(f) > old / low, f / factor,
                        torch.where(wave(f) < old / high, f, (1 - smooth) * f / factor + smooth * f))
    else:
        assert p["rope_type"] == "default", p
    assert torch.allclose(f, self.inv_freq.double(), rtol=1e-6), (f, self.inv_freq)
    angle = position_ids[:, :, None].double() * f
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


tf.models.llama.modeling_llama.LlamaRotaryEmbedding.forward = rotary


def randomise(model, seed):
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            draw = torch.randn(p.shape, generator=g)
            norm = p.dim() == 1 and name.endswith("weight") or "lambda" in name
            p.copy_(1 + 0.2 * draw if norm else 0.2 * draw)


def words_tokenizer(folder, lowercase):
    """WordPiece with letters, pieces and a few words."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = sorted({w for s in SENTENCES for w in s.replace(",", "").split()})[:20]
    vocabulary = special + list(letters) + ["##" + c for c in letters] + list(",.!?'3") + [w for w in words if len(w) > 1]
    with open(os.path.join(folder, "vocab.txt"), "w") as f:
        f.write("".join(t + "\n" for t in vocabulary))
    json.dump({"do_lower_case": lowercase, "model_max_length": 24, "tokenizer_class": "BertTokenizer"},
              open(os.path.join(folder, "tokenizer_config.json"), "w"))
    from tokenizers import BertWordPieceTokenizer
    t = BertWordPieceTokenizer(os.path.join(folder, "vocab.txt"), lowercase=lowercase)
    return len(vocabulary), t


def bytes_tokenizer(folder):
    """Byte-level BPE of 272 tokens with a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers, decoders, trainers
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    t.train_from_iterator(SENTENCES, trainers.BpeTrainer(vocab_size=272, special_tokens=special, show_progress=False,
                                                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.save(os.path.join(folder, "tokenizer.json"))
    # The template of SmolLM2-135M-Instruct.
    template = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful AI "
                "assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
                "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
    json.dump({"chat_template": template, "bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>", "special": True},
               "add_bos_token": False, "tokenizer_class": "GPT2Tokenizer"}, open(os.path.join(folder, "tokenizer_config.json"), "w"))
    messages = [{"role": "user", "content": "Say hello."}, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Again."}]
    fast = tf.PreTrainedTokenizerFast(tokenizer_object=t)
    rendered = fast.apply_chat_template(messages, chat_template=template, tokenize=False, add_generation_prompt=True)
    json.dump({"messages": messages, "rendered": rendered}, open(os.path.join(folder, "chat.json"), "w"), indent=1)
    return t.get_vocab_size(), t


def note_tokens(folder, t):
    rows = [{"text": x, "ids": t.encode(x).ids, "plain": t.encode(x, add_special_tokens=False).ids, "decoded": t.decode(t.encode(x).ids)} for x in TEXTS]
    json.dump(rows, open(os.path.join(folder, "tokens.json"), "w"), indent=1, ensure_ascii=False)


def capture(layers, run):
    """Inputs of the first layer, then outputs of each."""
    states, handles = [], []
    first = lambda module, args, kwargs: states.append(args[0] if args else kwargs["hidden_states"])
    if len(set(layers)) < len(layers):
        layers = layers[:1]
    handles.append(layers[0].register_forward_pre_hook(lambda m, a, k: first(m, a, k) if not states else None, with_kwargs=True))
    for layer in layers:
        handles.append(layer.register_forward_hook(lambda m, a, out: states.append(out[0] if isinstance(out, tuple) else out)))
    with torch.no_grad():
        out = run()
    for h in handles:
        h.remove()
    return states, out


def finish(name, model, layers, vocabulary=None, pad=0, dtype=torch.float32, shard=None, seed=0, length=9):
    folder = os.path.join(OUT, name)
    randomise(model, seed)
    model = model.to(dtype)
    if model.can_generate():
        model.generation_config.eos_token_id = model.config.eos_token_id
        model.generation_config.bos_token_id = model.config.bos_token_id
    model.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    # As stored, and without frequencies that were rounded with the weights.
    model = type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").double().eval()
    g = torch.Generator().manual_seed(100 + seed)
    golden = {}
    if vocabulary:
        ids = torch.randint(5, vocabulary, (3, length), generator=g)
        mask = torch.ones_like(ids)
        for row, real in enumerate((length, length - 3, 4)):
            mask[row, real:] = 0
            ids[row, real:] = pad
        golden |= {"input_ids": ids, "attention_mask": mask}
        inputs = {"input_ids": ids, "attention_mask": mask}
        if model.config.model_type in ("bert", "albert"):
            types = torch.zeros_like(ids)
            types[:, 3:] = 1
            types *= mask
            golden["token_type_ids"] = inputs["token_type_ids"] = types
    else:
        c = model.config
        golden["pixel_values"] = torch.randn(2, c.num_channels, c.image_size, c.image_size, generator=g).double()
        inputs = {"pixel_values": golden["pixel_values"]}
    states, out = capture(layers(model), lambda: model(**inputs))
    golden |= {f"hidden.{i}": s for i, s in enumerate(states)}
    with torch.no_grad():
        base = model.base_model(**inputs)
    golden["last_hidden"] = base[0]
    if "logits" in out:
        golden["logits"] = out.logits
    elif getattr(base, "pooler_output", None) is not None and model.config.model_type != "dinov2":
        golden["pooled"] = base.pooler_output
    if model.can_generate() and vocabulary:
        text = golden["input_ids"][:1, :4]
        for _ in range(12):
            with torch.no_grad():
                text = torch.cat([text, model(input_ids=text).logits[:, -1:].argmax(-1)], 1)
        golden["generated"] = text
    save_file({k: v.contiguous().clone() for k, v in golden.items()}, os.path.join(OUT, name + ".safetensors"))
    print(name, len(states), {k: list(v.shape) for k, v in golden.items()})


def made(name):
    folder = os.path.join(OUT, name)
    os.makedirs(folder, exist_ok=True)
    return folder


small = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)

n, t = words_tokenizer(made("bert-masked"), True)
note_tokens(made("bert-masked"), t)
finish("bert-masked", tf.BertForMaskedLM(tf.BertConfig(**small, vocab_size=n, max_position_embeddings=24)), lambda m: list(m.bert.encoder.layer), n, seed=1)
n, t = words_tokenizer(made("bert-sentences"), False)
note_tokens(made("bert-sentences"), t)
finish("bert-sentences", tf.BertModel(tf.BertConfig(**small, vocab_size=n, max_position_embeddings=24)), lambda m: list(m.encoder.layer), n, seed=2)
finish("bert-classifier", tf.BertForSequenceClassification(tf.BertConfig(
    **small, vocab_size=40, max_position_embeddings=16, id2label={0: "no", 1: "yes", 2: "perhaps"}, label2id={"no": 0, "yes": 1, "perhaps": 2})),
    lambda m: list(m.bert.encoder.layer), 40, seed=3)
finish("roberta", tf.RobertaForMaskedLM(tf.RobertaConfig(**small, vocab_size=60, max_position_embeddings=26, type_vocab_size=1, pad_token_id=1)),
       lambda m: list(m.roberta.encoder.layer), 60, pad=1, seed=4)
finish("gpt2", tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=32, vocab_size=80, bos_token_id=2, eos_token_id=2)),
       lambda m: list(m.transformer.h), 80, dtype=torch.bfloat16, seed=5)
finish("llama-tied", tf.LlamaForCausalLM(tf.LlamaConfig(**small, vocab_size=80, max_position_embeddings=64, tie_word_embeddings=True,
       num_key_value_heads=4)), lambda m: list(m.model.layers), 80, seed=6)
n, t = bytes_tokenizer(made("llama-grouped"))
note_tokens(made("llama-grouped"), t)
finish("llama-grouped", tf.LlamaForCausalLM(tf.LlamaConfig(
    **{**small, "num_hidden_layers": 3}, vocab_size=n, max_position_embeddings=128, num_key_value_heads=2, head_dim=12, attention_bias=True, mlp_bias=True,
    tie_word_embeddings=False, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2,
    rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 32})),
    lambda m: list(m.model.layers), n, dtype=torch.float16, shard="40KB", seed=7)
image = dict(**{k: v for k, v in small.items()}, image_size=12, patch_size=4)
finish("vit", tf.ViTForImageClassification(tf.ViTConfig(**image, num_channels=3, id2label={0: "a", 1: "b", 2: "c", 3: "d"},
       label2id={"a": 0, "b": 1, "c": 2, "d": 3})), lambda m: list(m.vit.layers), seed=8)
image.pop("intermediate_size")
finish("dinov2", tf.Dinov2Model(tf.Dinov2Config(**image, mlp_ratio=2, num_channels=3)), lambda m: list(m.encoder.layer), seed=9)
finish("dinov2-classifier", tf.Dinov2ForImageClassification(tf.Dinov2Config(**image, mlp_ratio=2, num_channels=1, num_labels=3)),
       lambda m: list(m.dinov2.encoder.layer), seed=10)
finish("albert", tf.AlbertForMaskedLM(tf.AlbertConfig(**{**small, "num_hidden_layers": 3}, embedding_size=16, vocab_size=60, max_position_embeddings=24,
       num_hidden_groups=1)), lambda m: [m.albert.encoder.albert_layer_groups[0].albert_layers[0]] * 3, 60, seed=11)

scalings = [{"rope_type": "default"}, {"rope_type": "linear", "factor": 4.0}, {"rope_type": "dynamic", "factor": 2.0},
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8, "beta_slow": 2, "mscale": 0.7,
             "mscale_all_dim": 1.1, "truncate": False}]
rows = []
for scaling in scalings:
    config = tf.LlamaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=64, rope_parameters={"rope_theta": 10000.0, **scaling})
    kind = scaling["rope_type"]
    if kind == "default":
        frequencies, factor = 10000.0 ** (-torch.arange(0, 16, 2) / 16), 1.0
    else:
        compute = tf.modeling_rope_utils.ROPE_INIT_FUNCTIONS[kind]
        frequencies, factor = compute(config, "cpu", 200) if kind == "dynamic" else compute(config, "cpu")
    rows.append({"scaling": scaling, "frequencies": frequencies.tolist(), "factor": factor})
json.dump(rows, open(os.path.join(OUT, "rotary.json"), "w"), indent=1)
