"""`regard.transformers` against the attention of PyTorch in small models. Skipped where transformers is missing."""

from __future__ import annotations

import copy
import doctest
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import regard.torch  # noqa: E402
import regard.transformers as inside  # noqa: E402
from regard.transformers import masks  # noqa: E402
from transformers import masking_utils  # noqa: E402

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 128}
PART = {"layers": 2, "attention_heads": 4, "ffn_dim": 40}
SLIDING = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}


def configurations() -> dict[str, Any]:
    t = transformers
    return {
        "llama": t.LlamaConfig(**GROUPED),
        "mistral": t.MistralConfig(**GROUPED, sliding_window=6),
        "gemma": t.GemmaConfig(**GROUPED, head_dim=16),
        "gemma3": t.Gemma3TextConfig(**GROUPED, **SLIDING, head_dim=16, query_pre_attn_scalar=24),
        # Chunks, of which the texts here fill one alone.
        "llama4": t.Llama4TextConfig(
            **GROUPED, num_local_experts=2, num_experts_per_tok=1, attention_chunk_size=64, intermediate_size_mlp=40
        ),
        "gpt2": t.GPT2Config(
            vocab_size=61,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=128,
            bos_token_id=1,
            eos_token_id=None,
            pad_token_id=0,
        ),
    }


CAUSAL = list(configurations())
# Names that change between releases of transformers.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed")


@pytest.fixture(autouse=True)
def registered() -> None:
    inside.register()


def pair(config: Any, kind: str = "AutoModelForCausalLM", attention: str = "regard-softmax") -> tuple[Any, Any]:
    """Twice the same model: with the attention of PyTorch, and with ours."""
    torch.manual_seed(0)
    expected = getattr(transformers, kind).from_config(config, attn_implementation="sdpa").eval()
    seen = copy.deepcopy(expected)
    seen.set_attn_implementation(attention)
    assert seen.config._attn_implementation == attention
    return expected, seen


def text(batch: int = 3, tokens: int = 17) -> Any:
    return torch.randint(2, 61, (batch, tokens), generator=torch.Generator().manual_seed(1))


def padding(side: str, batch: int = 3, tokens: int = 17) -> Any:
    lengths = torch.tensor([tokens, tokens - 4, 3])[:batch, None]
    places = torch.arange(tokens)
    return (places < lengths if side == "right" else places >= tokens - lengths).long()


def close(seen: Any, expected: Any, bound: float = 2e-5) -> bool:
    return bool((seen - expected).abs().max() <= bound * expected.abs().max())


@pytest.mark.parametrize("name", CAUSAL)
def test_hidden_states_are_those_of_sdpa(name: str) -> None:
    expected, seen = pair(configurations()[name])
    given = {"output_hidden_states": True, "use_cache": False}
    with torch.no_grad():
        layers = zip(seen(text(), **given).hidden_states, expected(text(), **given).hidden_states, strict=True)
    assert all(close(*states) for states in layers)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", CAUSAL)
def test_padding_is_honoured(name: str, side: str) -> None:
    expected, seen = pair(configurations()[name])
    mask = padding(side)
    with torch.no_grad():
        states = [model(text(), attention_mask=mask).logits[mask.bool()] for model in (seen, expected)]
    assert close(*states)


@pytest.mark.parametrize("side", ["none", "left"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", CAUSAL)
def test_generate_gives_the_same_tokens(name: str, cache: str, side: str) -> None:
    expected, seen = pair(configurations()[name])
    mask = torch.ones_like(text()) if side == "none" else padding(side)
    given = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "output_scores": True}
    given.update(return_dict_in_generate=True, cache_implementation=cache, disable_compile=True)
    if cache == "dynamic":
        del given["cache_implementation"]
    ours, theirs = (model.generate(text(), **given) for model in (seen, expected))
    assert torch.equal(ours.sequences, theirs.sequences)
    assert all(close(*scores, 1e-4) for scores in zip(ours.scores, theirs.scores, strict=True))


def test_beams_and_a_continued_cache() -> None:
    expected, seen = pair(configurations()["llama"])
    given = {"max_new_tokens": 8, "num_beams": 3, "do_sample": False, "attention_mask": padding("left")}
    assert torch.equal(seen.generate(text(), **given), expected.generate(text(), **given))
    # Several tokens after a prefix: fewer queries than keys.
    with torch.no_grad():
        whole = expected(text()).logits
        prefix = seen(text()[:, :10], use_cache=True)
        rest = seen(text()[:, 10:], past_key_values=prefix.past_key_values).logits
    assert close(rest, whole[:, 10:])


@pytest.mark.parametrize("name", CAUSAL)
def test_gradients_are_those_of_sdpa(name: str) -> None:
    expected, seen = pair(configurations()[name])
    mask = padding("right")
    for model in (expected, seen):
        model.train()
        for part in model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        for part in model.modules():
            if hasattr(part, "attention_dropout") and isinstance(part.attention_dropout, float):
                part.attention_dropout = 0.0
        model(text(), attention_mask=mask, labels=text().masked_fill(mask == 0, -100)).loss.backward()
    for (label, ours), theirs in zip(seen.named_parameters(), expected.parameters(), strict=True):
        # What is 0 but for rounding, as the gradient of a bias of keys, is held against the weights beside it.
        size = max(float(theirs.grad.abs().max()), 1e-3)
        assert float((ours.grad - theirs.grad).abs().max()) <= 1e-4 * size, label


def test_dropout_in_training_and_none_in_evaluation() -> None:
    _, seen = pair(transformers.LlamaConfig(**GROUPED, attention_dropout=0.5))
    with torch.no_grad():
        assert torch.equal(seen(text()).logits, seen(text()).logits)
        seen.train()
        torch.manual_seed(3)
        first = seen(text()).logits
        second = seen(text()).logits
        torch.manual_seed(3)
        again = seen(text()).logits
    assert torch.equal(first, again) and not torch.equal(first, second)


@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_bert_and_vit_see_both_sides(side: str) -> None:
    bert = transformers.BertConfig(**SIZES, max_position_embeddings=64)
    expected, seen = pair(bert, "AutoModel")
    mask = torch.ones_like(text()) if side == "none" else padding(side)
    ours, theirs = (model(text(), attention_mask=mask).last_hidden_state for model in (seen, expected))
    assert close(ours[mask.bool()], theirs[mask.bool()])
    if side != "none":
        return
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    sizes = {name: SIZES[name] for name in names}
    expected, seen = pair(transformers.ViTConfig(**sizes, image_size=24, patch_size=8), "AutoModel")
    pixels = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(2))
    for model in (expected, seen):
        model(pixels).last_hidden_state.square().sum().backward()
    assert close(seen(pixels).last_hidden_state, expected(pixels).last_hidden_state)
    for ours, theirs in zip(seen.parameters(), expected.parameters(), strict=True):
        if theirs.grad is not None and theirs.grad.abs().max() > 1e-3:
            assert close(ours.grad, theirs.grad, 1e-4)


def test_cross_attention_and_windows_to_both_sides() -> None:
    decoder = transformers.BertConfig(**SIZES, is_decoder=True, add_cross_attention=True)
    expected, seen = pair(decoder, "AutoModel")
    states = torch.randn(3, 9, 32, generator=torch.Generator().manual_seed(4))
    given = {"encoder_hidden_states": states, "encoder_attention_mask": padding("right", tokens=9), "use_cache": False}
    with torch.no_grad():
        assert close(seen(text(), **given).last_hidden_state, expected(text(), **given).last_hidden_state)
    modern = transformers.ModernBertConfig(
        **{**SIZES, "eos_token_id": 2}, local_attention=8, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2
    )
    expected, seen = pair(modern, "AutoModel")
    mask = padding("right")
    with torch.no_grad():
        ours, theirs = (model(text(), attention_mask=mask).last_hidden_state for model in (seen, expected))
    assert close(ours[mask.bool()], theirs[mask.bool()])


@pytest.mark.parametrize("mechanism", ["gaussian", "linear", "performer", "sparse", "scatterbrain"])
def test_other_mechanisms_decode_as_they_read(mechanism: str) -> None:
    """Token by token through the cache of the model, and all at once."""
    _, seen = pair(configurations()["llama"], attention=f"regard-{mechanism}")
    mask = torch.ones_like(text())
    mask[0, :5] = 0
    places = (mask.cumsum(1) - 1).clamp(min=0)
    cache, steps = None, []
    with torch.no_grad():
        whole = seen(text(), attention_mask=mask, position_ids=places).logits
        for t in range(17):
            given = {"attention_mask": mask[:, : t + 1], "position_ids": places[:, t : t + 1]}
            step = seen(text()[:, t : t + 1], past_key_values=cache, use_cache=True, **given)
            cache = step.past_key_values
            steps.append(step.logits)
    assert close(torch.cat(steps, 1)[mask.bool()], whole[mask.bool()], 1e-4)


def test_a_name_of_ones_own_and_a_window() -> None:
    assert inside.register("regard-near", window=5) == ["regard-near"]
    # The window of Mistral counts the token itself.
    expected, seen = pair(transformers.MistralConfig(**GROUPED, sliding_window=6))
    full = copy.deepcopy(seen)
    full.config.sliding_window = None
    full.set_attn_implementation("regard-near")
    with torch.no_grad():
        assert close(full(text()).logits, expected(text()).logits)
    for name in ("sdpa", "eager", "flash_attention_2"):
        with pytest.raises(ValueError, match="is an attention of transformers, expected another name"):
            inside.register(name)
    with pytest.raises(ValueError, match="expected one without parameters"):
        inside.register("regard-mgk", "mgk")
    with pytest.raises(ValueError, match="'causal' is the model's own"):
        inside.register("regard-x", causal=True)
    with pytest.raises(ValueError, match="did you mean 'support.radius'"):
        inside.register("regard-x", "sparse", support__radios=3)
    with pytest.raises(ValueError, match="queries for keys"):
        inside.register("regard-x", "sparse", support__kind="lsh")


def test_encoders_beside_decoders_and_checkpointed_layers() -> None:
    bart = transformers.BartConfig(
        vocab_size=61,
        d_model=32,
        **{f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in PART.items()},
        max_position_embeddings=64,
    )
    expected, seen = pair(bart, "AutoModel")
    given = {"attention_mask": padding("right"), "decoder_input_ids": text()[:, :7]}
    with torch.no_grad():
        assert close(*(model(text(), **given).last_hidden_state for model in (seen, expected)))
    _, plain = pair(configurations()["llama"])
    again = copy.deepcopy(plain)
    again.gradient_checkpointing_enable()
    for model in (plain, again):
        model.train()
        model(text(), attention_mask=padding("left"), labels=text(), use_cache=False).loss.backward()
    for ours, theirs in zip(again.parameters(), plain.parameters(), strict=True):
        assert close(ours.grad, theirs.grad, 1e-6)


def test_half_precision() -> None:
    expected, seen = pair(configurations()["llama"])
    with torch.no_grad():
        theirs, ours = expected(text()).logits, seen.bfloat16()(text()).logits
    assert ours.dtype == torch.bfloat16 and close(ours.float(), theirs, 0.05)


def test_what_cannot_be_honoured_is_refused() -> None:
    config = configurations()["llama"]
    _, seen = pair(config)
    ids = text()
    with pytest.raises(ValueError, match=r"attention_mask has shape \[3, 1, 17, 17\].*attn_implementation='sdpa'"):
        seen(ids, attention_mask=torch.ones(3, 1, 17, 17).bool().tril())
    with pytest.raises(ValueError, match="packed_sequence_mask_function"):
        seen(ids, position_ids=torch.cat([torch.arange(9), torch.arange(8)])[None], use_cache=False)
    for given in ({"output_attentions": True}, {"output_attentions": True, "use_cache": False}):
        with pytest.raises(ValueError, match="output_attentions"):
            seen(ids, **given)
    with pytest.raises(ValueError, match="output_attentions"):
        seen.config.output_attentions = True
    with pytest.raises(ValueError, match="packed sequences"):
        lengths = torch.tensor([0, 9, 17], dtype=torch.int32)
        seen(ids, cu_seq_lens_q=lengths, cu_seq_lens_k=lengths, max_length_q=9, max_length_k=9)
    capped = transformers.Gemma2Config(**GROUPED, **SLIDING, head_dim=16)
    seen = transformers.Gemma2ForCausalLM._from_config(capped, attn_implementation="regard-softmax").eval()
    with pytest.raises(ValueError, match="soft-capping of scores"):
        seen(ids)
    sinks = transformers.GptOssConfig(**GROUPED, **SLIDING, head_dim=16, num_local_experts=2, num_experts_per_tok=1)
    model = transformers.GptOssForCausalLM._from_config(sinks, attn_implementation="regard-softmax").eval()
    with pytest.raises(ValueError, match="attention sinks"):
        model(ids)
    _, seen = pair(configurations()["mistral"], attention="regard-performer")
    with pytest.raises(ValueError, match="sliding window of 5 tokens to a side and performer none"):
        seen(ids)
    _, seen = pair(configurations()["gemma3"], attention="regard-linear")
    with pytest.raises(ValueError, match="linear has no scale|and linear none"):
        seen(ids)


def test_masks_of_the_layers_themselves() -> None:
    """Padding in four axes, as older models make it, and what else there may be."""
    keys = torch.tensor([[True] * 4, [True, True, False, False]])
    added = torch.zeros(2, 1, 1, 4).masked_fill(~keys[:, None, None], torch.finfo(torch.float32).min)
    for mask in (keys[:, None, None], added):
        assert torch.equal(masks.see(mask, True, None, (2, 3, 4)).valid, keys)
    with pytest.raises(ValueError, match="no bias"):
        masks.see(added + 0.5, True, None, (2, 3, 4))
    with pytest.raises(ValueError, match=r"shape \[2, 4\]"):
        masks.see(keys, True, None, (2, 3, 4))
    made = masks.make(2, 3, 4, q_offset=1, attention_mask=keys)
    assert masks.see(made, False, None, (2, 3, 4)).causal
    # What a model computes from a mask has lost its pattern.
    with pytest.raises(ValueError, match="attention_mask has shape"):
        masks.see(made & True, False, None, (2, 3, 4))
    with pytest.raises(ValueError, match="the mask is of 3 queries and 4 keys"):
        masks.see(made, False, None, (2, 3, 5))
    with pytest.raises(ValueError, match="sliding window of 3 and no mask"):
        masks.see(None, True, 3, (1, 5, 5))
    with pytest.raises(ValueError, match="causal and has no mask at 3 queries and 5 keys"):
        masks.see(None, True, None, (1, 3, 5))
    with pytest.raises(ValueError, match="chunked_overlay"):
        masks.make(1, 8, 8, mask_function=masking_utils.chunked_causal_mask_function(4, torch.zeros(1, dtype=int)))
    short = masks.make(1, 8, 8, mask_function=masking_utils.chunked_causal_mask_function(8, torch.zeros(1, dtype=int)))
    assert short.pattern == masks.Pattern(causal=True)


@pytest.mark.parametrize("queries,keys,q_offset,kv_offset", [(7, 7, 0, 0), (1, 9, 8, 0), (3, 9, 4, 0), (2, 5, 9, 6)])
def test_patterns_are_those_of_the_dense_masks(queries: int, keys: int, q_offset: int, kv_offset: int) -> None:
    functions = [masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function]
    functions += [masking_utils.sliding_window_causal_mask_function(3)]
    functions += [masking_utils.sliding_window_bidirectional_mask_function(2)]
    for function in functions:
        sizes = {"batch_size": 1, "q_length": queries, "kv_length": keys, "q_offset": q_offset, "kv_offset": kv_offset}
        dense = masking_utils.sdpa_mask(**sizes, mask_function=function, allow_is_causal_skip=False)
        made = masks.make(**sizes, mask_function=function)
        assert torch.equal(masks._grid(made.pattern, made.offset, queries, keys, "cpu"), dense[0, 0])
        if queries == 1:
            assert torch.equal(made.as_subclass(torch.Tensor), dense)


def test_the_example_in_the_docstring() -> None:
    result = doctest.testmod(inside)
    assert result.attempted > 0 and result.failed == 0


PLAN = """
layers = 2
seed = 7

[[group]]
layer = 2
key_heads = [1]
attention = { mechanism = "sparse", support = { radius = 3 } }

[[group]]
layer = 1
key_heads = [0]

[[group]]
layer = 1
key_heads = [1]
attention = { mechanism = "softmax", window = 4 }
"""


@pytest.fixture
def plan(tmp_path: Any) -> Any:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return path


def test_a_plan_of_exact_heads_changes_nothing() -> None:
    expected, seen = pair(configurations()["llama"])
    groups = [{"layer": 1, "key_heads": [1], "attention": {"mechanism": "softmax"}}, {"layer": 2, "key_heads": []}]
    assert inside.use_plan(seen, {"layers": 2, "group": groups}) is seen
    with torch.no_grad():
        assert close(seen(text()).logits, expected(text()).logits)
    seen.set_attn_implementation("sdpa")
    with torch.no_grad():
        assert torch.equal(seen(text()).logits, expected(text()).logits)


def test_a_plan_changes_its_heads(plan: Any) -> None:
    expected, seen = pair(configurations()["llama"])
    inside.use_plan(seen, plan)
    q, k, v = (torch.randn(3, heads, 17, 8, generator=torch.Generator().manual_seed(heads)) for heads in (4, 2, 2))
    mask = masks.make(3, 17, 17)
    attend = transformers.AttentionInterface._global_mapping["regard-plan"]
    first, second = (attend(layer.self_attn, q, k, v, mask)[0] for layer in seen.model.layers)
    exact = regard_softmax(q, k, v)
    assert not first[:, :, :2].any()
    assert close(first[:, :, 2:], regard_softmax(q, k, v, window=4)[:, :, 2:])
    assert close(second[:, :, :2], exact[:, :, :2]) and not close(second[:, :, 2:], exact[:, :, 2:])
    # Decoding goes by the same heads.
    cache, steps = None, []
    with torch.no_grad():
        whole = seen(text()).logits
        for t in range(17):
            step = seen(text()[:, t : t + 1], past_key_values=cache, use_cache=True)
            cache = step.past_key_values
            steps.append(step.logits)
    assert close(torch.cat(steps, 1), whole, 1e-4)
    assert copy.deepcopy(seen).generate(text(), max_new_tokens=3, do_sample=False).shape == (3, 20)


def regard_softmax(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return regard.torch.attention(q, k, v, causal=True, **options).transpose(1, 2)


def test_draws_of_a_plan_differ_by_layer_and_group() -> None:
    _, seen = pair(configurations()["llama"])
    attention = {"mechanism": "performer", "features": {"rows": 8}}
    groups = [{"layer": layer, "key_heads": [head], "attention": attention} for layer in (1, 2) for head in (0, 1)]
    inside.use_plan(seen, {"layers": 2, "seed": 3, "group": groups})
    seeds = {group.options["seed"] for layer in seen.model.layers for group in layer.self_attn.regard_plan}
    assert len(seeds) == 4
    seen.train()
    seen(text(), labels=text()).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in seen.parameters())


def test_plans_for_other_models_are_refused(plan: Any) -> None:
    _, seen = pair(configurations()["llama"])
    group = {"layer": 1, "key_heads": [0], "attention": {"mechanism": "sparse"}}
    for content, message in (
        ({"layers": 3}, "the plan is for 3 layers, expected the 2 that the model has"),
        ({"layers": 2, "seeds": 3}, "key 'seeds' in a plan"),
        ({"layers": 2, "group": [{**group, "layer": 0}]}, "layer of a plan is 0, expected a number from 1 to 2"),
        ({"layers": 2, "group": [{**group, "heads": [0]}]}, "key 'heads' in a group of a plan"),
        ({"layers": 2, "group": [{**group, "key_heads": [2]}]}, "key head of a plan is 2, expected a number below 2"),
        ({"layers": 2, "group": [group, group]}, "key head 0 of layer 1 is named twice"),
        ({"layers": 2, "group": [{**group, "attention": {"mechanism": "fastformer"}}]}, "one without parameters"),
        ({"layers": 2, "group": [{**group, "attention": {"mechanism": "sparze"}}]}, "sparse"),
    ):
        with pytest.raises(ValueError, match=message):
            inside.use_plan(seen, content)
    with pytest.raises(TypeError, match="expected a model of transformers"):
        inside.use_plan(torch.nn.Linear(2, 2), plan)
    falcon = transformers.FalconConfig(vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    with pytest.raises(ValueError, match="FalconForCausalLM has no layer that calls the attention interface"):
        inside.use_plan(transformers.FalconForCausalLM(falcon), plan)
    inside.use_plan(copy.deepcopy(seen), plan)
    seen.set_attn_implementation("regard-plan")
    with pytest.raises(ValueError, match="has no plan"):
        seen(text())


ROOT = Path(__file__).resolve().parents[2]
STORIES = ROOT / "crates" / "pretrained" / "tests" / "stories260k"


@pytest.mark.skipif(not STORIES.exists(), reason="no checkout of the whole project, with its small pretrained model")
@pytest.mark.parametrize("case", ["exact", "scatterbrain", "performer"])
def test_a_plan_means_what_it_means_to_the_command_line(case: str) -> None:
    """Losses that ``regard swap --text LICENSE-MIT --length 64 --divisors 4 --seed 11`` gave, in results.json."""
    tokenizer = pytest.importorskip("tokenizers").Tokenizer.from_file(str(STORIES / "tokenizer.json"))
    ids = tokenizer.encode((ROOT / "LICENSE-MIT").read_text(), add_special_tokens=False).ids
    # The second and the last of four sequences: those that plans are judged by.
    rows = torch.tensor([ids[start : start + 64] for start in ((len(ids) - 64) // 3, len(ids) - 64)])
    model = transformers.AutoModelForCausalLM.from_pretrained(STORIES, dtype=torch.float32).eval()
    sums = {"mechanism": "scatterbrain", "features": {"rows": 2}}
    sums["support"] = {"kind": "longformer", "globals": 4, "radius": 7}
    features = {"mechanism": "performer", "features": {"rows": 8}}
    # Layer, key heads, attention: None drops the heads.
    changed: list[tuple[int, list[int], Any]] = {
        "exact": [],
        "scatterbrain": [*((layer, [0, 1, 2, 3], sums) for layer in (1, 2, 3, 4)), (5, [0, 3], sums)],
        "performer": [
            (1, [3], features),
            (2, [2], None),
            (3, [0, 1, 2], None),
            (3, [3], features),
            (4, [0], features),
            (4, [1, 2], None),
            (5, [0, 3], None),
        ],
    }[case]
    groups: list[dict[str, Any]] = []
    for layer, heads, attention in changed:
        groups.append({"layer": layer, "key_heads": heads, **({"attention": attention} if attention else {})})
    expected = {"exact": 6.952763, "scatterbrain": 6.966376, "performer": 7.170775}[case]
    inside.use_plan(model, {"layers": 5, "seed": 11, "group": groups})
    with torch.no_grad():
        assert float(model(rows, labels=rows).loss) == pytest.approx(expected, rel=2e-6)
