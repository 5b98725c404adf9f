"""Events: objects, JSON, and the console handler."""

import json
import logging

from api import events, show

event = events.Event("name", events.EventSource.AGENT, metadata={"a": 1, "b": "x", "c": None})
text = json.loads(event.serialize()) | {"timestamp": 0}
show(more=[text.pop(name, None) is not None for name in ("monotonic", "version")], text=text)
show(
    same=events.Event.deserialize(event.serialize()) == event,
    source=[e.value for e in events.EventSource],
)
show(
    handlers=[
        isinstance(events.get_logging_handler(name), logging.Handler)
        for name in ("null", "console")
    ]
)
events.record(event)
events.record(event, "console")
