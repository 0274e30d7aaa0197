// Package sum is what the tests of package mutation break.
package sum

// Sum adds numbers, up to the first that is negative.
func Sum(list []int) int {
	total := 0
	for _, n := range list {
		if n < 0 {
			break
		}
		total += n
	}
	return total
}
