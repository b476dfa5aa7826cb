"""Names and identities of a catalog: objects by locator, immutable id or name, and the aliases of an object."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from headwater.arguments import checked, suggesting
from headwater.catalog.table_parts import near_name
from headwater.catalog.transport import Transport
from headwater.errors import InvalidInputError
from headwater.metastore import Locator
from headwater.names import ObjectId, format_name
from headwater.notebook import ShownList
from headwater.verbs import catalog as verbs
from headwater.verbs.object_verbs import DescribedObject, FindObject, ListObjects, ObjectPage

Name = str | Sequence[str]


@suggesting(near_name)
@checked
class ObjectLookup(ABC):
    """The calls of a catalog about the ids, locators and aliases of its objects. Only metastore catalogs have them."""

    @property
    @abstractmethod
    def _transport(self) -> Transport: ...

    @abstractmethod
    def _id(self, name: Name) -> ObjectId: ...

    def find(self, locator: str | Locator) -> DescribedObject:
        """Return the object of a locator or its Canonical String, such as `prod|users`. Aliases are names too.

        Below a table a locator goes on with its version; a stream's id and format; a partition's id and values; a
        position. Raises TableNotFound (4).
        """
        found: DescribedObject = self._transport.call(FindObject(locator=str(locator)))
        return found

    def by_id(self, id: str) -> DescribedObject:
        """Return the namespace or table of an immutable id, whatever its name is now, or another object by its `key`.

        Raises TableNotFound (4).
        """
        found: DescribedObject = self._transport.call(FindObject(key=id))
        return found

    def describe(self, name: Name) -> DescribedObject:
        """Return a namespace or table with its immutable id, locator, aliases and properties."""
        return self.find(Locator(self._id(name).names))

    def objects(self, name: Name = "") -> list[DescribedObject]:
        """Return the namespaces and tables of a namespace, or the versions, streams and partitions of a table."""
        names, found, token = self._id(name).names, list[DescribedObject](), None
        while True:
            page: ObjectPage = self._transport.call(ListObjects(id=names, page_token=token))
            found, token = [*found, *page.objects], page.page_token
            if token is None:
                return ShownList(found, f"Objects of {format_name(names) or 'the root'}")

    def alias(self, name: Name, other: Name) -> None:
        """Add an alias: `other` finds the namespace or table too, in the same namespace. Lists do not show it."""
        self._transport.call(verbs.AddAlias(id=self._id(name).names, alias=self._alias_name(name, other)))

    def unalias(self, name: Name, other: Name) -> None:
        """Remove an alias of a namespace or table."""
        self._transport.call(verbs.RemoveAlias(id=self._id(name).names, alias=self._alias_name(name, other)))

    def _alias_name(self, name: Name, other: Name) -> str:
        """Return an alias as one name; `other` is that name alone, or with the namespace of the object."""
        id, given = self._id(name), self._id(other)
        if given.level == 1 or (not id.is_root and given.level and given.parent == id.parent):
            return given.name
        raise InvalidInputError(
            f"An alias stands beside the name it is for: {other} is in another namespace than {name}."
        )
