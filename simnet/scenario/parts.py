"""Base classes of scenario parts, whose fields come from the signatures of the functions that they configure.

`configures` gives a part a field for each parameter, with its default, unit, bounds and help. Fields that a part has
itself go first: other words, forms that people write, checks across fields. Kinds of other packages are kinds as well.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    Tag,
    ValidationInfo,
    create_model,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from simnet.base import plugins
from simnet.base.quantities import Absolute, Bandwidth, Notation, Seconds, Written, parameter_hints
from simnet.scenario.choice_text import choice_words, kind_fields, named_fields
from simnet.scenario.fields import File

Target: TypeAlias = Callable[..., Any]
"""A configured function or class, with parameters described in its docstring."""

STREAM = ("seed", "name")
"""Random-stream parameters, supplied by the scenario rather than by fields."""

P = TypeVar("P", bound="Part")


class FieldError(ValueError):
    """Error of a part of a scenario; the attribute `field` names the field that causes it."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class Part(BaseModel):
    """Base class of the parts of a scenario, which are YAML mappings with fixed fields.

    Below the first paragraph of its docstring, a subclass has the help of fields: a name, a colon, and the text.
    """

    # A part is built when it is first given: there are over a hundred, and most scenarios have few of them.
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, populate_by_name=True, defer_build=True
    )

    configured: ClassVar[Mapping[Target, Mapping[str, str]]] = {}
    """Configured targets, and the field of each of their parameters."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        cls.__doc__, _, fields = inspect.cleandoc(cls.__doc__ or "").partition("\n\n")
        for name, text in re.findall(r"^(\w+): (.*(?:\n +.*)*)", fields, re.MULTILINE):
            cls.model_fields[name].description = " ".join(text.split())

    if TYPE_CHECKING:
        # Fields that `configures` derives.
        def __getattr__(self, name: str) -> Any: ...

    def _check(self) -> None:
        """Raise ValueError if fields of the part contradict each other."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self._check()
        return self

    @classmethod
    def names(cls) -> list[str]:
        """Return the field names in YAML spelling."""
        return field_names(cls)

    @property
    def function(self) -> Target:
        """Function or class whose parameters are the part's fields; the first one if there are several."""
        return next(iter(self.configured))

    @property
    def is_absolute(self) -> bool:
        """Whether the part's `function` returns an absolute bandwidth or latency rather than a factor."""
        return Absolute in get_args(parameter_hints(self.function, ["return"]).get("return"))

    def with_fields(self, **fields: Any) -> Self:
        """Return a copy of the part with other values of some fields, by attribute name, which are not checked."""
        return self.model_copy(update=fields)

    def takes(self, parameter: str) -> bool:
        """Return whether the part's `function` has a parameter of this name."""
        return parameter in inspect.signature(self.function).parameters

    def arguments(self, target: Target | None = None) -> dict[str, Any]:
        """Return the part's fields as keyword arguments of `target`; fields not given are left out."""
        fields = next(iter(self.configured.values()), {}) if target is None else self.configured[target]
        given = {name: getattr(self, field) for name, field in fields.items()}
        given |= {name: _parse_value(name, value) for name, value in (self.model_extra or {}).items()}
        return {name: _as_argument(value) for name, value in given.items() if value is not None}

    def build(self, target: Target | None = None, **more: Any) -> Any:
        """Call `target`, by default the part's `function`, with the part's fields and `more` as keyword arguments."""
        return (target or self.function)(**{**self.arguments(target), **more})


class Named(Part):
    """Base class of parts that may also be text ``NAME:option=value,...`` or ``{NAME: {option: value}}``."""

    named: ClassVar[str]
    """Name of the field that holds the name."""

    text_pattern: ClassVar[str] = ""
    """Regular expression that a text must match, for the JSON schema."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return named_fields(value, cls.named, cls.names())

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler.resolve_ref_schema(handler(schema)) | {"type": ["object", "string"], "pattern": cls.text_pattern}


class Kinds(Part):
    """Base class of mappings from a kind, such as ``markov``, to its parameters; packages may register more kinds."""

    registry: ClassVar[plugins.Kind | None] = None
    """Plug-in registry of further kinds."""

    otherwise: ClassVar[str] = ""
    """Default kind of a text that names no kind."""

    @classmethod
    def derived(cls, target: Target, name: str | None = None) -> type[Part]:
        """Return a part class with one scenario field for each parameter of the function or class `target`."""
        return part_of(target, name, omit=STREAM)

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of all kinds; kinds that other packages register come last."""
        return list(dict.fromkeys([*field_names(cls), *(plugins.plugin_names(cls.registry) if cls.registry else ())]))

    @classmethod
    def parts(cls, given: Collection[str] | None = None) -> dict[str, type[Part]]:
        """Return the part class of each kind that has parameters, by name, including kinds of other packages."""
        fields = cls.with_registered(given).model_fields
        choices = ((kind, one) for kind, field in fields.items() for one in alternatives(field.annotation))
        return {kind: one for kind, one in choices if isinstance(one, type) and issubclass(one, Part)}

    @classmethod
    def with_registered(cls, given: Collection[str] | None = None) -> type[Self]:
        """Return the class with one more field for each registered plug-in, or only for those named in `given`.

        Raises PluginError if one cannot be imported, or has parameters that people cannot write.
        """
        if cls.registry is None:
            return cls
        if given is None:
            found = plugins.usable_plugins(cls.registry, cls._of_others)
        else:
            found = {one: part for one in given if (part := cls._of_others(one)) is not None}
        extended: type[Self] = _with_kinds(cls, tuple(found.items()), f"{cls.__name__}_registered") if found else cls
        return extended

    @classmethod
    def _of_others(cls, name: str) -> type[Part] | None:
        def part(target: Target) -> type[Part]:
            try:
                made = cls.derived(target, f"{cls.registry}.{name}")
                made.model_rebuild()  # at once: what cannot be written is the fault of the package
            except Exception as error:
                said = str(error).partition("\n")[0]
                raise plugins.PluginError(f"it has parameters that no scenario can give: {said}") from error
            return made

        assert cls.registry is not None
        return None if name in field_names(cls) else plugins.load_plugin(cls.registry, name, part)

    @model_validator(mode="wrap")
    @classmethod
    def _registered(cls, value: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        if isinstance(value, str):
            # Other packages are looked for where a name is none of simnet's.
            own = field_names(cls)
            kinds = own if choice_words(value)[0].partition(":")[0] in own else cls.names()
            value = kind_fields(value, kinds, cls.otherwise)
        extended = cls.with_registered(list(map(str, value))) if isinstance(value, dict) else cls
        return handler(value) if extended is cls else extended.model_validate(value, context=info.context)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        extended = cls.with_registered()
        found = schema if extended is cls else extended.__pydantic_core_schema__
        pattern = "" if cls.otherwise else f"^({'|'.join(cls.names())})(:|$)"
        text = {"title": cls.__name__, "type": ["object", "string"], "pattern": pattern}
        return handler.resolve_ref_schema(handler(found)) | text


class OneOf(Kinds):
    """Base class of mappings with exactly one key, which names the kind, such as ``{star: {hosts: 4}}``."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: object) -> object:
        """Replace the value None, which YAML reads for a kind without parameters, by an empty mapping."""
        return {key: {} if one is None else one for key, one in value.items()} if isinstance(value, dict) else value

    def _check(self) -> None:
        exactly_one(self, field_names(type(self)))

    @property
    def choice(self) -> tuple[str, Any]:
        """The chosen kind and its parameters."""
        return next((kind, part) for kind, part in self if part is not None)


def configures(
    target: Target,
    *,
    only: Collection[str] | None = None,
    omit: Collection[str] = (),
    required: Collection[str] = (),
    optional: Mapping[str, str] | None = None,
    **renamed: str,
) -> Callable[[type[P]], type[P]]:
    """Return a class decorator that adds a scenario field for each parameter of the function or class `target`.

    Parameters
    ----------
    target : callable
        A function or class. A part may configure several; the innermost decorator comes first.
    only, omit : collection of str
        Parameters that become fields (default: all), and those that do not.
    required : collection of str
        Parameters that must be given, though they have a default.
    optional : mapping of str to str, optional
        Parameters that may be left out, and the help for what happens then.
    **renamed : str
        Field names of parameters that have another name in a scenario.

    Examples
    --------
    >>> from simnet.topologies import ring
    >>> @configures(ring, hosts="computers")
    ... class Ring(Part):
    ...     pass
    >>> Ring(computers=3, latency="2 ms", bandwidth="1 Gbit/s").arguments()
    {'hosts': 3, 'latency': 0.002, 'bandwidth': 125000000.0}
    """
    signature = inspect.signature(target).parameters
    named = {name: one for name, one in signature.items() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)}
    taken = {name: renamed.get(name, name) for name in named if (only is None or name in only) and name not in omit}
    hints, helps, open_ = parameter_hints(target, list(taken)), parameter_help(target), optional or {}

    def derived(part: type[P]) -> type[P]:
        own = get_type_hints(part, include_extras=True)
        fields: dict[str, Any] = {}
        for name, field in taken.items():
            if isinstance(getattr(part, field, None), property):
                continue
            said = part.model_fields.get(field)
            annotation, default = own.get(field, Any), _field_default(target, named[name])
            if annotation is Any:
                annotation = _written_annotation(_with_unit(name, hints.get(name, Any)))
            text = helps.get(name)
            if said is not None and not said.is_required():
                default = said.default
                annotation = annotation if default is not None else _union_type([annotation, None])
            elif name in required:
                is_union = get_origin(annotation) in (Union, UnionType)
                choices = get_args(annotation) if is_union else (annotation,)
                annotation, default = _union_type([one for one in choices if one is not NoneType]), ...
            elif name in open_:
                annotation, default = _union_type([annotation, None]), None
                text = f"{text or ''} Default: {open_[name]}.".strip()
            alias, text = (None, text) if said is None else (said.alias, said.description or text)
            fields[field] = (annotation, Field(default=default, alias=alias, description=text))
        model: type[P] = create_model(
            part.__name__,
            __base__=part,
            __module__=part.__module__,
            __doc__=part.__dict__.get("__doc__") or summary(target),
            **fields,
        )
        if len(named) < len(signature):
            model.model_config["extra"] = "allow"
            model.model_rebuild(force=True)
        model.configured = {**part.configured, target: {**part.configured.get(target, {}), **taken}}
        return model

    return derived


@cache
def part_of(
    target: Target,
    name: str | None = None,
    *,
    omit: tuple[str, ...] = (),
    optional: tuple[tuple[str, str], ...] = (),
    base: type[Part] = Part,
) -> type[Part]:
    """Return a part class with the fields of `base` and one field for each parameter of a function or class."""
    title = "".join(word.title() for word in (name or target.__name__).split("_"))
    return configures(target, omit=omit, optional=dict(optional))(create_model(title, __base__=base))


def kinds(**given: Any) -> Callable[[type[P]], type[P]]:
    """Return a class decorator: each ``NAME=function`` adds a field NAME, a mapping of the function's parameters."""

    def derived(part: type[P]) -> type[P]:
        assert issubclass(part, Kinds)
        found = tuple((kind, part.derived(one, kind) if _is_target(one) else one) for kind, one in given.items())
        model: type[P] = _with_kinds(part, found, part.__name__)
        return model

    return derived


def alternatives(annotation: Any) -> list[Any]:
    """Return the member types of a union annotation, with Annotated removed."""
    if get_origin(annotation) is Annotated:
        return alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [one for choice in get_args(annotation) for one in alternatives(choice)]
    return [annotation]


def field_names(part: type[BaseModel]) -> list[str]:
    """Return a part's field names in YAML spelling."""
    return [field.alias or name for name, field in part.model_fields.items()]


def either(**tags: str) -> Discriminator:
    """Return a pydantic discriminator that picks a union's member by whether a value is scalar, list or mapping."""

    def tag(value: object) -> str:
        kind = "list" if isinstance(value, list) else "mapping" if isinstance(value, dict | BaseModel) else "scalar"
        kind = "mapping" if isinstance(value, str) and len(choice_words(value)) > 1 else kind
        return tags.get(kind) or next(iter(tags.values()))

    return Discriminator(tag)


A = TypeVar("A")
B = TypeVar("B")

NameOr: TypeAlias = Annotated[
    Annotated[A, Tag("<name>")] | Annotated[B, Tag("<mapping>")], either(scalar="<name>", mapping="<mapping>")
]
"""A name or a mapping, distinguished by tag."""

ValueOrList: TypeAlias = Annotated[
    Annotated[A, Tag("<number>")] | Annotated[B, Tag("<list>")], either(scalar="<number>", list="<list>")
]
"""A single value or a list, distinguished by tag."""


def given_fields(part: Part) -> list[str]:
    """Return the names of a part's fields that have a value."""
    return [name for name in field_names(type(part)) if getattr(part, name) is not None]


def exactly_one(part: BaseModel, names: Sequence[str]) -> None:
    """Raise ValueError unless exactly one of the named fields has a value."""
    found = [name for name in names if getattr(part, name) is not None]
    if not found:
        raise ValueError(f"needs one of {', '.join(names)}")
    if len(found) > 1:
        raise ValueError(f"takes only one of {', '.join(names)}, got {' and '.join(found)}")


def summary(documented: object) -> str:
    """Return the first paragraph of a docstring, without a leading "Return" or "Read"."""
    first = (inspect.getdoc(documented) or "").split("\n\n")[0].replace("\n", " ")
    text = first.removeprefix("Return ").removeprefix("Read ").replace("``", "`")
    return text[:1].upper() + text[1:]


def parameter_help(target: Target) -> dict[str, str]:
    """Return the description of each parameter from a function's or class's docstring, without units.

    >>> from simnet.topologies import tree
    >>> parameter_help(tree)["arity"]
    'Children of a switch, >= 2.'
    """
    section = re.search(r"^Parameters\n-+\n(.*?)(?=\n\n\S|\Z)", inspect.getdoc(target) or "", re.DOTALL | re.MULTILINE)
    found: dict[str, str] = {}
    for names, text in re.findall(r"^(\S.*)\n((?:(?:[ ].*)?(?:\n|\Z))+)", section[1] if section else "", re.MULTILINE):
        plain = re.sub(r" \[(s|bytes?|byte/s)\]|``|(?<=\])_", "", " ".join(text.split()))
        found |= dict.fromkeys((name.strip("* ") for name in names.partition(" : ")[0].split(",")), plain)
    return found


def _is_target(one: Any) -> bool:
    return callable(one) and get_origin(one) is None and not (isinstance(one, type) and issubclass(one, BaseModel))


def _field_default(target: Target, parameter: inspect.Parameter) -> Any:
    """Return the default value of the scenario field for a parameter; ``...`` if the field is required."""
    if dataclasses.is_dataclass(target):
        field = next(one for one in dataclasses.fields(target) if one.name == parameter.name)
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
    default = parameter.default
    return ... if default is parameter.empty else list(default) if isinstance(default, tuple) else default


def _with_unit(name: str, annotation: Any) -> Any:
    """Return a parameter's annotation; a number named latency or bandwidth is annotated with its unit."""
    bare = annotation in (Any, float)
    return {"latency": Seconds, "bandwidth": Bandwidth}.get(name.rpartition("_")[2], annotation) if bare else annotation


def _as_argument(value: Any) -> Any:
    """Return a field value as a call argument: parts become the objects they describe, lists become tuples."""
    if isinstance(value, Part) and value.configured:
        return value.build()
    return tuple(value) if isinstance(value, list) else value


def _parse_value(name: str, value: Any) -> Any:
    """Return the value of a plug-in's parameter; a latency or bandwidth is read with its unit."""
    notations = (one for one in get_args(_with_unit(name, Any)) if isinstance(one, Notation))
    return next((one.read(value) for one in notations), value)


def _union_type(choices: Sequence[Any]) -> Any:
    return Union[tuple(choices)]  # noqa: UP007  # as many as there are


def _written_annotation(annotation: Any) -> Any:
    """Return the type that a parameter of type `annotation` has as a scenario field, as people write it in YAML."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        form = next((one.form for one in inside[1:] if isinstance(one, Written)), None)
        return _written_annotation(form) if form is not None else Annotated[_written_annotation(inside[0]), *inside[1:]]
    if origin in (Union, UnionType):
        return _written_union(inside)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return dict[_written_annotation(inside[0]), _written_annotation(inside[1])]  # type: ignore[misc]
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return list[_written_annotation(inside[0])]  # type: ignore[misc]
    if isinstance(annotation, type) and (dataclasses.is_dataclass(annotation) or hasattr(annotation, "_fields")):
        return part_of(annotation)
    return annotation


def _written_union(choices: Sequence[Any]) -> Any:
    """Return the annotation of the scenario field for a parameter that takes any of several types."""
    none = [None] if NoneType in choices else []
    if Path in choices:
        return _union_type([File, *none])
    forms = [_written_annotation(one) for one in choices if one is not NoneType]
    lists = [one for one in forms if get_origin(one) is list]
    if 0 < len(lists) < len(forms):
        scalars = [one for one in forms if get_origin(one) is not list]
        forms = [ValueOrList[_union_type(scalars), _union_type(lists)]]  # type: ignore[misc]
    return _union_type([*forms, *none])


@cache
def _with_kinds(part: type[Kinds], further: tuple[tuple[str, Any], ...], name: str) -> Any:
    fields: dict[str, Any] = {kind: (one | None, None) for kind, one in further}
    return create_model(name, __base__=part, __module__=part.__module__, __doc__=part.__doc__, **fields)
