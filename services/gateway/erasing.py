"""Erasures, and the check of who may erase which data: a caller its own jobs, a tenant's admin those of the tenant, an
operator all.

A caller without a key may erase jobs of callers without a key.
"""

from __future__ import annotations

from protos import cache_maintainer_pb2, common_pb2, gateway_pb2
from protos.cache_maintainer_pb2_grpc import CacheMaintainerServiceStub
from services.gateway.caller import Caller, check_tenant
from services.gateway.own_jobs import own_job
from shared.catalog import Catalog
from shared.domain.errors import InvalidRequestError, NotFoundError, PermissionDeniedError
from shared.domain.identity import Principal, Rate, Role
from shared.domain.ids import is_id
from shared.runtime import rpc
from shared.runtime.settings import Settings
from shared.service import LONGEST_CALL_S, Context
from shared.service.rates import Buckets

TIMEOUT_S = LONGEST_CALL_S
"""Time limit of one erasure in seconds: of a whole tenant it reads every plan."""
ERASURES = Rate(1.0, 30)
"""Erasures of a caller who is no operator: each walks through the plans of all jobs."""


class Eraser:
    """Has the cache maintainer erase what callers ask for, over gRPC and HTTP."""

    def __init__(self, context: Context) -> None:
        self._context, self._erasures = context, Buckets("caller")

    async def erase(
        self, request: gateway_pb2.EraseRequest, caller: Caller, who: Principal, actor: str
    ) -> common_pb2.Erasure:
        """Return what was removed. Raises what `to_erase` raises, and RateLimitError above ERASURES."""
        context = self._context
        try:
            asked = await to_erase(request, caller, who, actor, context.backends.catalog, context.settings)
        except (PermissionDeniedError, NotFoundError) as error:
            if context.door is not None:
                context.door.note_refused(actor, "Erase", error.code, target_of(request))
            raise
        if Role.OPERATOR not in who.roles or not who.subject:  # anonymous callers have every role
            self._erasures.use(caller.owner, ERASURES, context.clock.monotonic())
        stub = context.stub(CacheMaintainerServiceStub, "cache_maintainer")
        return (await rpc.call(stub.Erase, asked, timeout_s=TIMEOUT_S)).erasure


async def to_erase(
    request: gateway_pb2.EraseRequest, caller: Caller, who: Principal, actor: str, catalog: Catalog, settings: Settings
) -> cache_maintainer_pb2.EraseRequest:
    """Return the request for the cache maintainer. Raises PermissionDeniedError, NotFoundError for a job that is not
    the caller's, and InvalidRequestError.

    actor: the caller, for the audit log.
    """
    what, operator = request.WhichOneof("what"), Role.OPERATOR in who.roles and bool(who.subject)
    if what is None:
        raise InvalidRequestError("what", "must be exactly one of job_id, user and whole_tenant=true (got none)")
    asked = cache_maintainer_pb2.EraseRequest(actor=actor, **{what: getattr(request, what)})
    if what == "job_id":
        if not operator:
            await _check_own(request.job_id, caller, catalog, settings)
        return asked
    asked.tenant = check_tenant(request.tenant or caller.tenant)
    if not operator and not (caller.admin and asked.tenant == caller.tenant):
        needed = Role.TENANT_ADMIN if asked.tenant == caller.tenant else Role.OPERATOR
        raise PermissionDeniedError(f"Erase: the data of a user or a tenant needs a key with the role {needed}")
    return asked


def target_of(request: gateway_pb2.EraseRequest) -> str:
    """Return what a caller asked to erase, for the audit log."""
    what = request.WhichOneof("what")
    said = f"{what.removesuffix('_id')} {getattr(request, what)}" if what else "nothing"
    said = "everything" if what == "whole_tenant" else said
    return f"{said} of tenant {request.tenant}" if request.tenant else said


async def _check_own(job_id: str, caller: Caller, catalog: Catalog, settings: Settings) -> None:
    """Raise NotFoundError unless the caller may see the job, or its entry where the job expired."""
    try:
        await own_job(catalog.jobs, job_id, caller, settings.data_dir, "erase job")
    except NotFoundError:
        entry = (await catalog.entries.by_ids([job_id])).get(job_id) if is_id(job_id) else None
        if entry is None or not caller.may_see(entry.tenant, entry.user):
            raise
