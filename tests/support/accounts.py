"""The accounts of the local stack, with invented secrets, written as ingest's accounts file."""

import base64
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Account:
    provider: str
    alias: str
    mode: str
    secrets: tuple[str, ...]
    account: str | None = None
    client_reference_id: bool = False
    name: str = ""  # "": an entry of before, named as its alias
    aliases: tuple[str, ...] = ()


def _webhook_secret(fill: int) -> str:
    return "whsec_" + base64.b64encode(bytes(range(fill, fill + 32))).decode()


DEFAULT = (
    Account("stripe", "shop", "live", ("whsec_demo1",), "acct_shop"),
    Account("stripe", "shop-test", "test", ("whsec_demo_test",)),
    Account("stripe", "shop2", "live", ("whsec_demo2",), "acct_shop2"),
    Account("lightning", "node1", "live", (_webhook_secret(0),), "02-node1"),
    Account("lightning", "node2", "live", (_webhook_secret(64),), "02-node2"),
    Account("lightning", "node-test", "test", (_webhook_secret(128),)),
)


def secret(alias: str, accounts: tuple[Account, ...] = DEFAULT) -> str:
    """The first secret of an alias: what a sender signs with."""
    return next(a.secrets[0] for a in accounts if a.alias == alias)


def id_of(provider: str, alias: str, accounts: tuple[Account, ...] = DEFAULT) -> str | None:
    """The provider's id of the account, where one is configured."""
    return next((a.account for a in accounts if (a.provider, a.alias) == (provider, alias)), None)


def write(folder: Path, accounts: tuple[Account, ...] = DEFAULT) -> Path:
    """Writes secret files and accounts.json into `folder`; returns the path of the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for a in accounts:
        files = []
        for i, text in enumerate(a.secrets):
            file = folder / f"{a.provider}-{a.alias}-{i}"
            file.write_text(text + "\n")
            file.chmod(0o600)
            files.append(str(file))
        row: dict[str, object] = {"provider": a.provider, "mode": a.mode, "account": a.account}
        row |= {"name": a.name, "aliases": a.aliases} if a.name else {"alias": a.alias}
        if a.provider == "stripe":
            row["client_reference_id"] = a.client_reference_id
        rows.append({**row, "secret_files": files})
    path = folder / "accounts.json"
    path.write_text(json.dumps({"accounts": rows}, indent=2) + "\n")
    return path
