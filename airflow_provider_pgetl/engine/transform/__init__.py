"""Transformation of values on their way: masked, replaced, encrypted.

    source ──texts──▶ transform ──texts──▶ destination

Both paths, and all destinations, meet in one form: the text of the type's output function, in an Arrow column. There a
value is replaced, before anything is written of it:

| path | where | before |
|---|---|---|
| copy | `copy.ranges`, in the process that reads a range (an executor) | staging, data files, the destination's COPY |
| stream | `stream.batches`, as a batch is iterated | landing, folding, the destination's session |
| verify | `verify`, as the source's rows are read | hashes and samples |

* `config.transformers` declares transformers; `rules` finds those of a table; `columns` replaces the values of a column
  by them; `tables` does so for the columns of a copied batch and for the messages of a stream.
* Rules are data without secrets, and travel to executors with the ranges; keys travel with the connections.
* A value before its transformation exists in the memory of the process that has read it, and nowhere else. What the
  stream holds beyond its memory budget goes to an unnamed file, encrypted with a key that never leaves the process.
* What goes wrong stops the table (`columns`). A table without rules takes none of this code.
* Types, lengths and nullability of columns stay, so destinations know nothing of it. Only the form is fixed: a table
  with rules is sent as text (`TableSchema.as_text`), because rules are defined on texts.
* Rows are identified by transformed keys. So a transformer of a key must keep its values distinct, and must depend on
  the key alone: the source sends no other value of a deleted row.
"""
