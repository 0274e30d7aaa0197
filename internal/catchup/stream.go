package catchup

import "context"

// stream calls next again and again, and use with what it returns, in order, until next says that there is no more, or
// one of them fails. next runs one call ahead, in a goroutine that has ended when stream returns; inline, it does not.
func stream[T any](ctx context.Context, inline bool, next func(context.Context) (T, bool, error), use func(T) error) error {
	if inline {
		for {
			v, more, err := next(ctx)
			if err != nil || !more {
				return err
			}
			if err := use(v); err != nil {
				return err
			}
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	type item struct {
		v    T
		more bool
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	items := make(chan item)
	go func() { // ends when next returns after cancel, or has no more; awaited below, by reading items to their end
		defer close(items)
		for {
			v, more, err := next(ctx)
			select {
			case items <- item{v, more, err}:
			case <-ctx.Done():
				return
			}
			if err != nil || !more {
				return
			}
		}
	}()
	defer func() {
		cancel()
		for range items {
		}
	}()
	for it := range items {
		if it.err != nil || !it.more {
			return it.err
		}
		if err := use(it.v); err != nil {
			return err
		}
	}
	return ctx.Err()
}
