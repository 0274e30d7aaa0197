package state

// chunkRows is how many rows one chunk of a table holds: so few that the copy after a Freeze is short, so
// many that a Freeze, which copies one pointer per chunk, is short too.
const chunkRows = 128

// table is a growing list of rows that can be frozen cheaply (copy-on-write by chunk): freeze hands out a
// view of the rows as they are and costs one pointer per chunk; the first change to a chunk after that
// copies the chunk.
//
// A view may be read by another goroutine while the table changes, because the table never again writes to
// memory that a view can see: edit copies a chunk that a view holds, and push writes only behind the last row
// of every view. A row that is removed (the last one takes its place) breaks the second half of that: a view may
// see rows behind the end then, so push copies a chunk that shrank and that a view may hold.
type table[T any] struct {
	chunks []*chunk[T]
	len    int
	// frozen counts the freezes. A chunk whose age is less than that is held by a view.
	frozen uint64
}

// chunk holds rows. Only the table, never a view, looks at age and shrank.
type chunk[T any] struct {
	rows   [chunkRows]T
	age    uint64 // the table's count of freezes when the chunk was made
	shrank bool   // a view may see rows of it behind the table's last one
}

// view is a table at the moment of a freeze.
type view[T any] struct {
	chunks []*chunk[T]
	len    int
}

// at returns row i, to be read only, and only until the table changes.
func (t *table[T]) at(i int) *T { return &t.chunks[i/chunkRows].rows[i%chunkRows] }

// edit returns row i, to be changed before anything else is done with the table.
func (t *table[T]) edit(i int) *T {
	c := t.chunks[i/chunkRows]
	if c.age != t.frozen {
		c = &chunk[T]{rows: c.rows, age: t.frozen}
		t.chunks[i/chunkRows] = c
	}
	return &c.rows[i%chunkRows]
}

// push appends a row.
func (t *table[T]) push(row T) {
	if t.len%chunkRows == 0 {
		t.chunks = append(t.chunks, &chunk[T]{age: t.frozen})
	}
	c := t.chunks[t.len/chunkRows]
	if c.shrank {
		t.edit(t.len) // copies it, if a view may hold it
		c = t.chunks[t.len/chunkRows]
	}
	c.rows[t.len%chunkRows] = row
	t.len++
}

// remove removes row i. The last row takes its place. What stood in the last place is forgotten only when something
// else is written there, or its chunk goes.
func (t *table[T]) remove(i int) {
	last := t.len - 1
	if i != last {
		*t.edit(i) = *t.at(last)
	}
	if t.len = last; last%chunkRows == 0 {
		t.chunks[last/chunkRows] = nil
		t.chunks = t.chunks[:last/chunkRows]
		return
	}
	t.chunks[last/chunkRows].shrank = true
}

// freeze returns the rows as they are now.
func (t *table[T]) freeze() view[T] {
	t.frozen++
	v := t.view()
	v.chunks = append([]*chunk[T](nil), v.chunks...)
	return v
}

// view returns the rows as they are until the table changes.
func (t *table[T]) view() view[T] { return view[T]{chunks: t.chunks, len: t.len} }

func (v *view[T]) at(i int) *T { return &v.chunks[i/chunkRows].rows[i%chunkRows] }
