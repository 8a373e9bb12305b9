"""Entry points of plugins that no package installs, for processes of engines that find them in PYTHONPATH."""


def write_entry_points(folder, name, version, text):
    """A distribution's metadata in `folder`. text: its entry_points.txt."""
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text(text, encoding="utf-8")
