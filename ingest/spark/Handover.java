// What a task of Spark's does with its rows, so that they need not pass through the driver: see handover.py.
// The compiler that Spark has for its queries (Janino) makes a class of it, without lambdas and inferred types.
package dovetail;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.Collections;
import java.util.Iterator;

import org.apache.arrow.vector.VectorUnloader;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.spark.api.java.function.Function2;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.StructType;

public final class Handover implements Function2 {
    private final String[] files;
    private final String name;
    private final StructType type;
    private final int mostRows;
    private final long mostBytes;

    // files: where the rows of each partition go; name: what each of them is called, so that it is no other.
    // mostRows, mostBytes: where a batch is cut; bytes are looked at every few rows.
    public Handover(String[] files, String name, StructType type, int mostRows, long mostBytes) {
        this.files = files;
        this.name = name;
        this.type = type;
        this.mostRows = mostRows;
        this.mostBytes = mostBytes;
    }

    // Write the rows of a partition as Arrow messages, one after the other; nothing is left for the driver.
    public Object call(Object partition, Object iterator) throws Exception {
        Iterator rows = (Iterator) iterator;
        FileChannel file = opened(Paths.get(this.files[((Integer) partition).intValue()], new String[0]));
        try {
            WriteChannel out = new WriteChannel(file);
            ArrowWriter writer = ArrowWriter.create(this.type, "UTC", true, false);
            try {
                VectorUnloader unloader = new VectorUnloader(writer.root());
                while (rows.hasNext()) {
                    this.fill(writer, rows);
                    ArrowRecordBatch batch = unloader.getRecordBatch();
                    try {
                        MessageSerializer.serialize(out, batch);
                    } finally {
                        batch.close();
                    }
                    writer.reset();
                }
            } finally {
                writer.root().close();
            }
        } finally {
            file.close();
        }
        return Collections.emptyIterator();
    }

    // A task of a query that has failed may come late, when the number of its file is another file's, which must not be
    // touched. The name is looked at when it is open: if it is still the right one, it was so before.
    private FileChannel opened(Path path) throws IOException {
        FileChannel file = FileChannel.open(path, new OpenOption[] {StandardOpenOption.WRITE});
        if (!Files.readSymbolicLink(path).toString().equals(this.name)) {
            file.close();
            throw new IOException("nobody waits for these rows any more");
        }
        file.truncate(0); // what a first try has left
        return file;
    }

    private void fill(ArrowWriter writer, Iterator rows) {
        int count = 0;
        while (count < this.mostRows && rows.hasNext()) {
            writer.write((InternalRow) rows.next());
            count += 1;
            if (count % 64 == 0 && writer.sizeInBytes() >= this.mostBytes) {
                break;
            }
        }
        writer.finish();
    }
}
