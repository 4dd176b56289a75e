"""Chat templates in the style of public models, written for these tests, and a tokenizer with their tokens.

Each template has the known behavior of its namesake: stripped text, the place of tools, refusals.
"""

import json
from pathlib import Path
from typing import Any

QWEN25 = """\
{%- macro asked(tools) %}
{{- '\\n\\n# Tools\\n\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools>' }}
{%- endmacro %}
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] }}
{%- else %}
    {{- '<|im_start|>system\\nYou are helpful.' }}
{%- endif %}
{%- if tools %}{{- asked(tools) }}{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for message in messages %}
    {%- if message.role == 'user' or message.role == 'assistant' and not message.tool_calls %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for call in message.tool_calls %}
            {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}
            {{- call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
QWEN3 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '<tools>' }}{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == 'user' %}
        {%- set ns.searching = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last and (loop.last or reasoning) %}
            {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if loop.first and content or not loop.first %}{{- '\\n' }}{%- endif %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '<tool_call>\\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}
            {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
LLAMA3 = """\
{{- bos_token }}
{%- if strftime_now is defined %}{%- set day = strftime_now('%d %b %Y') %}
{%- else %}{%- set day = '26 Jul 2024' %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = '' %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: ' + day + '\\n\\n' + system }}
{%- for tool in tools or [] %}{{- '\\n' }}{{- tool | tojson(indent=4) }}{%- endfor %}
{{- '<|eot_id|>' }}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception('only one call at once') }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- '}<|eot_id|>' }}
    {%- elif message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}{{- message.content | tojson }}{{- '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
R1 = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'system' %}{{- message.content }}
{%- elif message.role == 'user' %}{{- '<|User|>' + message.content }}
{%- elif message.role == 'assistant' %}
{%- set content = message.content %}
{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}
{{- '<|Assistant|>' + content + eos_token }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|Assistant|><think>\\n' }}{%- endif %}
"""
R1_FIRST = R1.replace("'<|Assistant|><think>\\n'", "'<|Assistant|>'")
MISTRAL = """\
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}{%- set talk = messages[1:] %}
{%- else %}{%- set talk = messages %}{%- endif %}
{%- set asked = talk | selectattr('role', 'equalto', 'user') | list %}
{{- bos_token }}
{%- for message in talk %}
    {%- if message.role == 'user' %}
        {%- if tools and message == asked[-1] %}
            {{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}
        {{- '[INST]' }}{%- if loop.last and system is defined %}{{- system + '\\n\\n' }}{%- endif %}
        {{- message.content + '[/INST]' }}
    {%- elif message.tool_calls is defined %}
        {{- '[TOOL_CALLS][' }}
        {%- for call in message.tool_calls %}
            {%- if call.id is not defined or call.id | length != 9 %}
                {{- raise_exception('an id has nine letters') }}{%- endif %}
            {{- {'name': call.function.name, 'arguments': call.function.arguments, 'id': call.id} | tojson }}
            {%- if not loop.last %}{{- ', ' }}{%- endif %}
        {%- endfor %}
        {{- ']' + eos_token }}
    {%- elif message.role == 'assistant' %}{{- message.content + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]' + {'content': message.content} | tojson + '[/TOOL_RESULTS]' }}
    {%- else %}{{- raise_exception('Only user, assistant and tool roles are supported') }}{%- endif %}
{%- endfor %}
"""
GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}
"""
MARKED = """\
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}{{- message.content + '<|im_end|>' }}{% endgeneration %}{{- '\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
PHI = """\
{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}
"""
CONTROLS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<|User|>", "<|Assistant|>", "<|eos|>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]"),
    *("[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "<bos>", "<start_of_turn>", "<end_of_turn>"),
)
PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
IM = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
NAMED: dict[str, dict[str, str]] = {
    "qwen2.5": IM,
    "qwen3": IM,
    "llama3": {"bos_token": "<s>", "eos_token": "<|eot_id|>"},
    "r1": {"bos_token": "<s>", "eos_token": "<|eos|>"},
    "r1-first": {"bos_token": "<s>", "eos_token": "<|eos|>"},
    "mistral": {"bos_token": "<s>", "eos_token": "</s>"},
    "gemma": {"bos_token": "<bos>", "eos_token": "<end_of_turn>"},
    "marked": IM,
    "phi": {"eos_token": "<|end|>"},
}
TEMPLATES = {
    "qwen2.5": QWEN25,
    "qwen3": QWEN3,
    "llama3": LLAMA3,
    "r1": R1,
    "r1-first": R1_FIRST,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "marked": MARKED,
    "phi": PHI,
}


def write(folder: Path, template: Any, named: dict[str, str]) -> Path:
    """Write a byte-level tokenizer with these tokens.

    template: the field of tokenizer_config.json, None to omit the field.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(["reads the paths and\n\nreturns the words \n\n 7 + 5 = 12"] * 4, trainer)
    made.add_special_tokens(list(CONTROLS))
    made.add_special_tokens([AddedToken(f"<|{one}|>", rstrip=True) for one in ("user", "assistant", "system", "end")])
    made.add_tokens([AddedToken(one, normalized=False) for one in PLAIN])
    folder.mkdir(exist_ok=True, parents=True)
    made.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 4096, **named}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
