"""What vLLM's server renders for a request, by its own code."""
import asyncio, copy, sys
from types import SimpleNamespace
from unittest import mock
for missing in ("orjson",):
    sys.modules.setdefault(missing, mock.MagicMock())
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages, DisabledThinkingEffortResolver
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import construct_input_messages, construct_tool_dicts
from vllm.exceptions import VLLMValidationError
from vllm.renderers import hf
from vllm.renderers.chat_utils import parse_chat_messages

MODEL = SimpleNamespace(multimodal_config=None, enable_prompt_embeds=False, is_multimodal_model=False, tokenizer_revision=None, code_revision=None,
                        tokenizer="", model="", trust_remote_code=False, revision=None)


def rendered(tokenizer, template, messages, request, tools, prompt):
    arguments = request.build_chat_params(template, "auto").get_apply_chat_template_kwargs()
    arguments.update(tokenize=False, add_generation_prompt=prompt)
    form = hf._detect_content_format(template, default="string")
    conversation, *_ = parse_chat_messages(messages, MODEL, form)
    arguments.pop("return_dict", None)
    return hf.safe_apply_chat_template(MODEL, tokenizer, conversation, tools=tools, **arguments)


class Efforts(DisabledThinkingEffortResolver):
    def __init__(self, render):
        self._render, self._effort = render, None

    async def _render_probe_prompt(self, effort):
        try:
            return self._render(ChatCompletionRequest(messages=[{"role": "user", "content": "Hi"}], reasoning_effort=effort))
        except Exception:
            return None


def chat(tokenizer, template, body, prompt):
    request = body if isinstance(body, ChatCompletionRequest) else ChatCompletionRequest(**copy.deepcopy(body))
    tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
    return rendered(tokenizer, template, request.messages, request, tools, prompt)


def responses(tokenizer, template, body, prompt):
    request = ResponsesRequest(**copy.deepcopy(body))
    messages = construct_input_messages(request_instructions=request.instructions, request_input=request.input)
    return rendered(tokenizer, template, messages, request, construct_tool_dicts(request.tools, request.tool_choice), prompt)


def anthropic(tokenizer, template, body, prompt):
    request = AnthropicMessagesRequest(**{"model": "m", "max_tokens": 4096, **copy.deepcopy(body)})
    effort = asyncio.run(Efforts(lambda r: chat(tokenizer, template, r, True)).resolve_for(request))
    made = AnthropicServingMessages.to_chat_completion_request(
        request, merge_inline_system=AnthropicServingMessages._detect_merge_inline_system(template), disabled_thinking_effort=effort)
    return chat(tokenizer, template, made, prompt)
