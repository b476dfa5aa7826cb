"""Names for versions: tags and branches (lance-rest-openapi.yaml, the tag and branch operations)."""

from __future__ import annotations

from typing import Any

import lance_namespace as api
from lance_namespace_urllib3_client.models.branch_contents import BranchContents
from lance_namespace_urllib3_client.models.tag_contents import TagContents

from headwater.errors import (
    InvalidInputError,
    TableBranchAlreadyExistsError,
    TableBranchNotFoundError,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
)
from headwater.imports import lance
from headwater.metastore.records.ref_record import RefTarget
from headwater.paging import page
from headwater.table_refs import MAIN, check_branch, check_tag, check_version
from headwater.tables.handle import TableHandle
from headwater.tables.translate import translating


def list_table_tags(table: TableHandle, request: api.ListTableTagsRequest) -> api.ListTableTagsResponse:
    """ListTableTags: pages by tag name. Errors 13 InvalidInput, 19."""
    found = _tags(table, "list the tags of")
    names, token = page(sorted(found), request.page_token, request.limit)
    tags = {
        name: TagContents(
            branch=found[name]["branch"], version=found[name]["version"], manifestSize=found[name]["manifest_size"]
        )
        for name in names
    }
    return api.ListTableTagsResponse(tags=tags, page_token=token)


def get_table_tag_version(table: TableHandle, request: api.GetTableTagVersionRequest) -> api.GetTableTagVersionResponse:
    """GetTableTagVersion: errors 8 TableTagNotFound, 13 InvalidInput, 19."""
    tag = check_tag(request.tag)
    found = _tags(table, f"find the tag {tag!r} of").get(tag)
    if found is None:
        raise TableTagNotFoundError(f"Table {table.id} has no tag {tag!r}.")
    return api.GetTableTagVersionResponse(version=found["version"], branch=found["branch"])


def _tags(table: TableHandle, doing: str) -> dict[str, Any]:
    known = table.known_refs
    if known is not None:
        return {
            name: {"branch": to.branch, "version": to.version, "manifest_size": to.size}
            for name, to in known.tags.items()
        }
    dataset = table.open()
    with translating(table, doing):
        return dict(dataset.tags.list())


def create_table_tag(table: TableHandle, request: api.CreateTableTagRequest) -> api.CreateTableTagResponse:
    """CreateTableTag: errors 9 TableTagAlreadyExists, 11 version, 13 InvalidInput, 19, 22 branch."""
    tag = check_tag(request.tag)
    branch = _existing_version(table, request.version, request.branch)
    dataset = table.open()
    with translating(table, f"create the tag {tag!r} of"):
        if tag in dataset.tags.list():
            raise TableTagAlreadyExistsError(f"Table {table.id} already has a tag {tag!r}: update it instead.")
        dataset.tags.create(tag, (branch, request.version))
    return api.CreateTableTagResponse()


def update_table_tag(table: TableHandle, request: api.UpdateTableTagRequest) -> api.UpdateTableTagResponse:
    """UpdateTableTag: errors 8 TableTagNotFound, 11 version, 13 InvalidInput, 19, 22 branch."""
    tag = check_tag(request.tag)
    dataset = table.open()
    with translating(table, f"update the tag {tag!r} of"):
        _check_there(table, dataset, tag)
        branch = _existing_version(table, request.version, request.branch)
        dataset.tags.update(tag, (branch, request.version))
    return api.UpdateTableTagResponse()


def _existing_version(table: TableHandle, version: int, branch: str | None) -> str | None:
    """Return the branch that the version is on (None for the main one), after both have been seen to exist."""
    check_version(table.id, version)
    table.open(version, branch)
    return None if branch in (None, "", MAIN) else branch


def _check_there(table: TableHandle, dataset: lance.LanceDataset, tag: str) -> None:
    if tag not in dataset.tags.list():
        raise TableTagNotFoundError(f"Table {table.id} has no tag {tag!r}.")


def delete_table_tag(table: TableHandle, request: api.DeleteTableTagRequest) -> api.DeleteTableTagResponse:
    """DeleteTableTag: errors 8 TableTagNotFound, 13 InvalidInput, 19."""
    tag = check_tag(request.tag)
    dataset = table.open()
    with translating(table, f"delete the tag {tag!r} of"):
        _check_there(table, dataset, tag)
        dataset.tags.delete(tag)
    return api.DeleteTableTagResponse()


def list_table_branches(table: TableHandle, request: api.ListTableBranchesRequest) -> api.ListTableBranchesResponse:
    """ListTableBranches: pages by branch name; the main branch is not listed. Errors 13 InvalidInput, 19."""
    known = table.known_refs
    dataset = table.open()
    with translating(table, "list the branches of"):
        found: dict[str, Any] = dict(dataset.branches.list())
    if known is not None:
        found = {name: found.get(name) or _unmade(to) for name, to in known.branches.items()}
    names, token = page(sorted(found), request.page_token, request.limit)
    branches = {
        name: BranchContents(
            parentBranch=found[name]["parent_branch"],
            parentVersion=found[name]["parent_version"],
            createAt=found[name]["create_at"],
            manifestSize=found[name]["manifest_size"],
            metadata=found[name]["metadata"] or None,
        )
        for name in names
    }
    return api.ListTableBranchesResponse(branches=branches, page_token=token)


def _unmade(to: RefTarget) -> dict[str, object]:
    """Return a branch that a transaction is going to make, as Lance would tell it."""
    begins = {"parent_branch": to.branch, "parent_version": to.version, "manifest_size": to.size}
    return {**begins, "create_at": to.time // 1000, "metadata": None}


def create_table_branch(table: TableHandle, request: api.CreateTableBranchRequest) -> api.CreateTableBranchResponse:
    """CreateTableBranch: errors 11 version, 13 InvalidInput, 19, 22 source not found, 23 already exists."""
    name = check_branch(request.name)
    if name == MAIN:
        raise InvalidInputError(f"{MAIN!r} is the branch that every table has: choose another name.")
    source = table.open(request.from_version, request.from_branch)
    branch = None if request.from_branch in (None, "", MAIN) else request.from_branch
    with translating(table, f"create the branch {name!r} of"):
        if name in table.open().branches.list():
            raise TableBranchAlreadyExistsError(f"Table {table.id} already has a branch {name!r}.")
        source.create_branch(name, (branch, source.version))
    return api.CreateTableBranchResponse()


def delete_table_branch(table: TableHandle, request: api.DeleteTableBranchRequest) -> api.DeleteTableBranchResponse:
    """DeleteTableBranch: errors 13 InvalidInput (in use, or the main one), 19, 22 TableBranchNotFound."""
    name = check_branch(request.name)
    if name == MAIN:
        raise InvalidInputError(f"The branch {MAIN!r} cannot be deleted: drop the table instead.")
    dataset = table.open()
    with translating(table, f"delete the branch {name!r} of", otherwise=InvalidInputError):
        if name not in dataset.branches.list():
            raise TableBranchNotFoundError(f"Table {table.id} has no branch {name!r}.")
        dataset.branches.delete(name)
    return api.DeleteTableBranchResponse()


def tag_version(table: TableHandle, tag: str) -> tuple[int, str | None]:
    """Return the version and branch that a tag points to, for operations that name a version by its tag."""
    found = get_table_tag_version(table, api.GetTableTagVersionRequest(tag=tag))
    if found.version is None:
        raise TableVersionNotFoundError(f"The tag {tag!r} of table {table.id} points nowhere.")
    return found.version, found.branch
