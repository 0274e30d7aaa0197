package state

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A table behaves like a slice, and a view like a copy of the slice at the time of the freeze.
func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tab table[int]
		var model []int
		type frozen struct {
			view  view[int]
			model []int
		}
		var views []frozen
		value := 0 // never the same twice
		push := func(n int) {
			for range n {
				value++
				tab.push(value)
				model = append(model, value)
			}
		}
		remove := func(i int) {
			tab.remove(i)
			last := len(model) - 1
			model[i] = model[last]
			model = model[:last:last]
		}
		t.Repeat(map[string]func(*rapid.T){
			"push":       func(*rapid.T) { push(1) },
			"push many":  func(t *rapid.T) { push(rapid.IntRange(1, 2*chunkRows).Draw(t, "n")) },
			"fill chunk": func(t *rapid.T) { push(chunkRows - len(model)%chunkRows) },
			"remove": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip("empty")
				}
				remove(rapid.IntRange(0, len(model)-1).Draw(t, "row"))
			},
			"remove many": func(t *rapid.T) {
				for range rapid.IntRange(0, min(len(model), chunkRows+2)).Draw(t, "n") {
					remove(rapid.SampledFrom([]int{0, len(model) / 2, len(model) - 1}).Draw(t, "row"))
				}
			},
			"edit": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip("empty")
				}
				i := rapid.IntRange(0, len(model)-1).Draw(t, "row")
				v := -rapid.IntRange(1, 1000).Draw(t, "value")
				*tab.edit(i) = v
				model[i] = v
			},
			"freeze": func(*rapid.T) {
				views = append(views, frozen{tab.freeze(), slices.Clone(model)})
			},
			"": func(t *rapid.T) {
				if want := (len(model) + chunkRows - 1) / chunkRows; len(tab.chunks) != want {
					t.Fatalf("%d chunks, want %d", len(tab.chunks), want)
				}
				now := tab.view()
				for _, f := range append(views, frozen{now, model}) {
					if f.view.len != len(f.model) {
						t.Fatalf("%d rows, want %d", f.view.len, len(f.model))
					}
					for i, want := range f.model {
						if got := *f.view.at(i); got != want {
							t.Fatalf("row %d is %d, want %d", i, got, want)
						}
					}
				}
			},
		})
	})
}

// After a freeze only the chunks that are changed are copied, each once.
func TestTableCopiesTouchedChunks(t *testing.T) {
	var tab table[int]
	for i := range 10 * chunkRows {
		tab.push(i)
	}
	v := tab.freeze()
	*tab.edit(0) = -1
	first := tab.chunks[0]
	*tab.edit(1) = -1
	*tab.edit(5 * chunkRows) = -1
	for i := range v.chunks {
		copied := v.chunks[i] != tab.chunks[i]
		if want := i == 0 || i == 5; copied != want {
			t.Errorf("chunk %d copied: %v", i, copied)
		}
	}
	if tab.chunks[0] != first {
		t.Error("chunk 0 was copied twice")
	}
}

// A chunk that shrank while a view may hold it is copied once by what is added to it.
func TestTableCopiesShrunkChunkOnce(t *testing.T) {
	var tab table[int]
	for i := range 10 {
		tab.push(i)
	}
	v := tab.freeze()
	tab.remove(9)
	if tab.chunks[0] != v.chunks[0] {
		t.Error("the chunk was copied for a row that went")
	}
	tab.push(-1)
	copied := tab.chunks[0]
	tab.push(-2)
	if copied == v.chunks[0] || tab.chunks[0] != copied || *v.at(9) != 9 || *tab.at(9) != -1 || *tab.at(10) != -2 {
		t.Error("the chunk was not copied once")
	}
}
