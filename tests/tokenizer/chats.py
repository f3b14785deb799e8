"""Templates and conversations of the chat goldens: the constructs that model templates use."""

# ruff: noqa: E501 - a template is a text, however wide

from __future__ import annotations

from typing import Any

NAMES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}

TEMPLATES = {
    "chatml": """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are helpful<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}""",
    "inst": """{{ bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + message['content'] | trim + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] | trim + ' ' + eos_token }}
    {%- endif %}
{%- endfor %}
""",
    "tools": """{%- if tools %}
<tools>
    {% for tool in tools %}
    {{ tool | tojson }}
    {{ tool.function | tojson(indent=4) }}
    {% endfor %}
</tools>
{% endif %}
{%- for message in messages %}
    {%- if message.tool_calls is defined and message.tool_calls %}
        {%- for call in message.tool_calls %}
call {{ call.function.name }} {{ call.function.arguments | tojson }}
        {%- endfor %}
    {%- elif message.role == "tool" %}
result {{ message.content }}
    {%- else %}
{{ message.role | capitalize }}: {{ message.content | default('nothing', true) | upper }}
    {%- endif %}
{%- endfor %}
""",
    "namespace": """{% set ns = namespace(system='', count=0, found=false) %}
{% for message in messages %}
    {% if message.role == 'system' %}
        {% set ns.system = ns.system ~ message.content %}
        {% continue %}
    {% endif %}
    {% set ns.count = ns.count + 1 %}
    {% if ns.count > 3 %}{% break %}{% endif %}
    {%- if not ns.found and ns.system %}
        {% set ns.found = true %}
        {{- '<<' ~ ns.system ~ '>>' -}}
    {% endif %}
{{ loop.index }}/{{ loop.length }} {{ loop.last }} {{ message.role[:4] }} {{ message.get('name', 'no one') }}
{% endfor %}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages[-1].role in ['user', 'tool'] }}
{{ messages | map(attribute='role') | join(', ') }}
""",
    "macro": """{% macro show(value, depth=0) %}
{% if value is mapping %}
{% for key, item in value | dictsort %}
{{ '  ' * depth }}{{ key }}:{{ show(item, depth + 1) }}
{% endfor %}
{% elif value is sequence and value is not string %}
{% for item in value %}{{ show(item, depth + 1) }}{% endfor %}
{% else %}
{{ value if value is not none else 'null' }}
{% endif %}
{% endmacro %}
{{ show(messages) }}
{% set text %}captured {{ messages | length }}{% endset %}
{{ text }}{{ '' if add_generation_prompt else '.' }}
""",
    "strings": """{% for message in messages %}
{% set content = message.content if message.content is string else '' %}
{{ content.strip() }}|{{ content.split(' ')[0] }}|{{ content.startswith('H') }}|{{ content[::-1] }}|{{ content | length }}
{{ content.replace('a', 'b') | title }}|{{ "%s-%03d" | format(message.role, loop.index) }}|{{ content.lstrip('H').rstrip('!') }}
{{ '{}:{}'.format(message.role, loop.index) }}|{{ content | indent(2) }}|{{ 'yes' if 'é' in content else 'no' }}
{% endfor %}
""",
    "generation": """{% for message in messages %}
{% if message.role == 'assistant' %}
{% generation %}
{{ message.content }}{{ eos_token }}
{% endgeneration %}
{% else %}
{{ message.content }}
{% endif %}
{% endfor %}
""",
}

CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hello there, banana!"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  Hi \n"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": " b "}, {"role": "user", "content": "é ü 你好 😀 <&>'\""}],
    [
        {"role": "user", "content": "weather?", "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "get", "arguments": {"city": "Zürich", "days": 2, "f": 0.5}}}
        ]},
        {"role": "tool", "content": '{"t": 21.5}', "tool_call_id": "1"},
        {"role": "assistant", "content": "21.5"},
    ],
    [{"role": role, "content": f"line {i}\nsecond\ttab"} for i, role in enumerate(["user", "assistant"] * 3)],
]  # fmt: skip

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get",
            "description": "Weather of a city: <b>now</b> & later, 'quoted', é",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
