"""The sums model with recurrent layers: a small Qwen3.5, trained as the sums model is."""

from transformers import PreTrainedTokenizerBase, Qwen3_5ForCausalLM, Qwen3_5TextConfig

from extensions.demo.recipes.sums import SumsRecipe


class HybridRecipe(SumsRecipe):
    def initial_model(self, tokenizer: PreTrainedTokenizerBase) -> Qwen3_5ForCausalLM:
        """Returns a Qwen3.5 with about 0.8 M parameters, of which two layers in four are recurrent."""
        config = Qwen3_5TextConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=320,
            num_hidden_layers=4,
            layer_types=["linear_attention", "full_attention"] * 2,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=32,
            linear_num_key_heads=1,
            linear_num_value_heads=1,
            linear_key_head_dim=64,
            linear_value_head_dim=64,
            max_position_embeddings=tokenizer.model_max_length,
            rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0},
            tie_word_embeddings=True,
            initializer_range=0.06,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
        )
        return Qwen3_5ForCausalLM(config)
