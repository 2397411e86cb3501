package table

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// parquetRows reads the wanted columns side by side, a page of each at a time.
type parquetRows struct {
	file    *os.File
	size    int64
	groups  []parquet.RowGroup // not read yet
	chunks  []format.RowGroup  // what the metadata say of them
	names   []string
	leaves  []int // of the wanted columns
	columns []parquetColumn
	values  []string
	row     int
}

// openParquet finds the wanted columns. The library that reads the file panics on some that are damaged: that becomes an error.
func openParquet(file *os.File, columns []string) (r *parquetRows, err error) {
	defer recovered(&err)
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if err := checkFooter(file, info.Size()); err != nil {
		return nil, err
	}
	f, err := parquet.OpenFile(file, info.Size(), parquet.SkipBloomFilters(true), parquet.SkipPageIndex(true))
	if err != nil {
		return nil, fmt.Errorf("not a Parquet file: %w", err)
	}
	r = &parquetRows{
		file: file, size: info.Size(), groups: f.RowGroups(), chunks: f.Metadata().RowGroups,
		names: columns, values: make([]string, len(columns)),
	}
	for _, column := range columns {
		leaf, ok := f.Schema().Lookup(column)
		switch {
		case !ok:
			var there []string
			for _, field := range f.Schema().Fields() {
				there = append(there, field.Name())
			}
			return nil, missing(column, there)
		case leaf.MaxRepetitionLevel > 0:
			return nil, fmt.Errorf("column %q holds lists, not one value per row", column)
		}
		r.leaves = append(r.leaves, leaf.ColumnIndex)
	}
	return r, nil
}

func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the file is damaged: %v", p)
	}
}

func (r *parquetRows) close() error {
	var errs []error
	for i := range r.columns {
		errs = append(errs, r.columns[i].pages.Close())
	}
	r.columns = nil
	return errors.Join(errs...)
}

func (r *parquetRows) next() (row Row, line int, err error) {
	line = r.row + 1
	defer recovered(&err)
	for {
		err = r.fill()
		if !errors.Is(err, io.EOF) {
			break
		}
		if err := r.close(); err != nil {
			return Row{}, line, err
		}
		if len(r.groups) == 0 {
			return Row{}, line, io.EOF
		}
		chunks := r.groups[0].ColumnChunks()
		for i, leaf := range r.leaves {
			if err := checkPages(r.file, r.size, &r.chunks[0].Columns[leaf]); err != nil {
				return Row{}, line, fmt.Errorf("column %q: %w", r.names[i], err)
			}
			r.columns = append(r.columns, parquetColumn{pages: chunks[leaf].Pages()})
		}
		r.groups, r.chunks = r.groups[1:], r.chunks[1:]
	}
	if err != nil {
		return Row{}, line, err
	}
	r.row++
	return Row{Line: r.row, Values: r.values}, 0, nil
}

// fill reads one value of each column; io.EOF at the end of the row group, or before the first.
func (r *parquetRows) fill() error {
	if len(r.columns) == 0 {
		return io.EOF
	}
	for i := range r.columns {
		v, err := r.columns[i].next()
		if err != nil {
			return err
		}
		if v.IsNull() {
			return fmt.Errorf("column %q is null", r.names[i])
		}
		r.values[i] = v.String()
	}
	return nil
}

// parquetColumn gives the values of one column of a row group.
type parquetColumn struct {
	pages  parquet.Pages
	values parquet.ValueReader
	buffer [256]parquet.Value
	have   []parquet.Value
}

func (c *parquetColumn) next() (parquet.Value, error) {
	for len(c.have) == 0 {
		if c.values == nil {
			page, err := c.pages.ReadPage()
			if err != nil {
				return parquet.Value{}, err
			}
			c.values = page.Values()
		}
		n, err := c.values.ReadValues(c.buffer[:])
		c.have = c.buffer[:n]
		if errors.Is(err, io.EOF) {
			c.values = nil
		} else if err != nil {
			return parquet.Value{}, err
		}
	}
	v := c.have[0]
	c.have = c.have[1:]
	return v, nil
}
